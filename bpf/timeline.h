/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The reducer a second time: what python/memtrack/timeline.py says and does, for whole buffers at a
 * time, to the bit. Functions have the names that they have there. Nothing here is safe for use by
 * two threads at once.
 */
#ifndef MEMTRACK_TIMELINE_H
#define MEMTRACK_TIMELINE_H

struct timeline;

/* Bit N of `known` says that member N was observed; the value of one that was not is 0. */
struct timeline_figures {
    int64_t values[4];
    uint64_t known;
};

/* A sum's parts when it was largest; `observed` is 0 where there was none. */
struct timeline_peak {
    struct timeline_figures figures;
    uint64_t at_ns, processes, observed;
};

enum timeline_state {
    TIMELINE_ALIVE = 0,
    TIMELINE_ENDED = 1,
    TIMELINE_UNKNOWN = 2,
};

/* Which of a process's fields were observed. */
enum timeline_field {
    TIMELINE_PPID = 1,
    TIMELINE_START = 2,
    TIMELINE_EXEC = 4,
    TIMELINE_END = 8,
    TIMELINE_WAIT_STATUS = 16,
};

struct timeline_process {
    uint32_t pid, ppid;
    uint32_t observed; /* of enum timeline_field */
    int32_t wait_status;
    uint32_t state; /* enum timeline_state */
    uint32_t zero;
    uint64_t seen_ns, start_ns, exec_ns, end_ns;
    char comm[16];
    struct timeline_peak rss_peak, rmap_peak;
    struct timeline_figures rss_last, rmap_last;
};

struct timeline_result {
    struct timeline_peak rss_peak, rmap_peak;
    uint64_t processes, processes_left, lost_events;
    uint64_t fed; /* 0: first_ns and last_ns say nothing */
    uint64_t first_ns, last_ns;
    uint64_t counts[256]; /* records by type */
};

/*
 * `seed` is random: pids that a file was made of to collide in a hash table must not. NULL where
 * there is no memory.
 */
struct timeline *timeline__new(uint64_t page_size, bool has_rmap, bool sampled, uint64_t seed);
void timeline__free(struct timeline *timeline);

/*
 * Takes whole records in this machine's byte order; `events` may be aligned to anything. Returns 0,
 * -EINVAL, or -ENOMEM, after which the timeline takes no more, and what it has is of the records
 * until then.
 */
int timeline__feed(struct timeline *timeline, const void *events, size_t size);

/* What was fed so far. Records that wait for what follows them are taken as they are. */
int timeline__result(struct timeline *timeline, struct timeline_result *result);
/*
 * Some of the processes, in the order of their first event, from *cursor on, which is moved to
 * where the next call goes on; `living` leaves out those that ended. Returns how many; fewer than
 * `room` are the last ones.
 */
size_t timeline__processes(const struct timeline *timeline, uint64_t *cursor,
                           struct timeline_process *out, size_t room, bool living);

#endif
