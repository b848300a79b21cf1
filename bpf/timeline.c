// SPDX-License-Identifier: GPL-2.0-only OR MIT
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "event.h"
#include "timeline.h"

#define RECORD sizeof(struct event)
#define MEMBERS EVENT_MEMBERS
#define ALL_MEMBERS ((1u << MEMBERS) - 1)

/* As in timeline.py, where the number is explained. */
#define LOOKAHEAD 256

#define NO_PARTNER SIZE_MAX

/* Blocks, not one array: nothing is copied as it grows, and processes keep their addresses. */
#define BLOCK_PROCESSES 256
#define FIRST_SLOTS_BITS 6

/*
 * Wide enough for the sum of as many figures as there are pids, and for any number of pages in
 * bytes.
 */
typedef __int128 wide;

/* The largest PEAK. */
struct certain {
    wide sum;
    int64_t values[MEMBERS];
    uint64_t at_ns, processes;
};

/* Figures and sums of a layer; `told` is of a PEAK that is not complete yet. */
struct top {
    wide sum;
    wide values[MEMBERS];
    uint32_t known;
    bool observed;
    uint64_t at_ns, processes;
    int64_t told[MEMBERS];
    uint32_t told_members;
    struct certain certain; /* none where at_ns is 0 */
};

struct held {
    int64_t values[MEMBERS];
    uint32_t known;
    wide sum;
    struct top peak;
};

struct layer {
    wide totals[MEMBERS];
    uint64_t holders[MEMBERS]; /* processes of which this member is known */
    wide sum;
    struct top peak;
};

struct process {
    uint32_t pid, ppid;
    uint32_t observed; /* of enum timeline_field */
    int32_t wait_status;
    enum timeline_state state;
    bool alive, forked;
    char comm[16];
    uint64_t seen_ns, start_ns, exec_ns, end_ns;
    uint64_t epoch;
    struct held rss, rmap;
    struct timeline_figures last, last_rmap;
};

/* What is known of a pid. Of a slot in use, at least one of the two is set. */
struct slot {
    uint32_t pid;
    struct process *live;
    uint64_t ended; /* the epoch in which it ended, plus 1 */
};

struct timeline {
    uint64_t page_size;
    bool has_rmap, sampled;
    int error;
    struct layer rss, rmap;
    uint64_t epoch, known;

    struct slot *slots;
    unsigned int slots_bits;
    size_t slots_used;
    uint64_t seed;

    struct process **blocks;
    size_t processes;

    uint64_t counts[256];
    uint64_t lost_events;
    bool fed;
    uint64_t first_ns, last_ns;

    /*
     * Records that cannot be judged before what follows is known, and room for as much of what
     * follows as may be.
     */
    uint8_t waiting[2 * LOOKAHEAD * RECORD];
    size_t waiting_records;
    /* RMAP records that were taken together with an earlier one, by their number in the stream. */
    bool merged[2 * LOOKAHEAD];
    uint64_t reduced;
};

static int64_t saturated(wide value) {
    return value > INT64_MAX ? INT64_MAX : value < INT64_MIN ? INT64_MIN : (int64_t)value;
}

/* A counter of a kernel before 6.2 can be below zero for a moment. */
static int64_t not_negative(uint64_t size_bytes) {
    return size_bytes > INT64_MAX ? 0 : (int64_t)size_bytes;
}

static bool is_member(int32_t member) {
    return member >= 0 && member < MEMBERS;
}

static struct event event_at(const uint8_t *view, size_t index) {
    struct event event;

    memcpy(&event, view + index * RECORD, RECORD);
    return event;
}

/* --- held and layer: the figures of a process, and of the tree --- */

static void forget(struct held *held) {
    memset(held->values, 0, sizeof(held->values));
    held->known = 0;
    held->sum = 0;
}

static void forget_layer(struct layer *layer) {
    memset(layer->totals, 0, sizeof(layer->totals));
    memset(layer->holders, 0, sizeof(layer->holders));
    layer->sum = 0;
}

static void put(struct layer *layer, struct held *held, int32_t member, int64_t size_bytes) {
    wide change = (wide)size_bytes - held->values[member];

    if (!(held->known & 1u << member))
        layer->holders[member]++;
    held->values[member] = size_bytes;
    held->known |= 1u << member;
    layer->totals[member] += change;
    if (member != EVENT_MEMBER_SWAP) {
        held->sum += change;
        layer->sum += change;
    }
}

static void take(struct layer *layer, struct held *held) {
    for (int member = 0; member < MEMBERS; member++) {
        layer->totals[member] -= held->values[member];
        if (held->known & 1u << member)
            layer->holders[member]--;
    }
    layer->sum -= held->sum;
    forget(held);
}

static void rise(struct layer *layer, struct held *held, uint64_t now_ns, uint64_t processes) {
    if (held->sum > held->peak.sum) {
        held->peak.sum = held->sum;
        for (int member = 0; member < MEMBERS; member++)
            held->peak.values[member] = held->values[member];
        held->peak.known = held->known;
        held->peak.at_ns = now_ns;
        held->peak.observed = true;
    }
    if (layer->sum > layer->peak.sum) {
        layer->peak.sum = layer->sum;
        memcpy(layer->peak.values, layer->totals, sizeof(layer->totals));
        layer->peak.known = 0;
        for (int member = 0; member < MEMBERS; member++)
            if (layer->holders[member])
                layer->peak.known |= 1u << member;
        layer->peak.at_ns = now_ns;
        layer->peak.processes = processes;
        layer->peak.observed = true;
    }
}

/* --- which process a pid is --- */

static struct slot *find(const struct timeline *t, uint32_t pid) {
    size_t mask = ((size_t)1 << t->slots_bits) - 1;
    /*
     * Multiplying by a random odd number and keeping the high bits makes any two pids collide
     * rarely.
     */
    size_t i = (size_t)((pid * t->seed) >> (64 - t->slots_bits));

    while ((t->slots[i].live || t->slots[i].ended) && t->slots[i].pid != pid)
        i = (i + 1) & mask;
    return &t->slots[i];
}

static struct process *live(const struct timeline *t, uint32_t pid) {
    return find(t, pid)->live;
}

static int grow(struct timeline *t) {
    struct slot *old = t->slots;
    size_t count = (size_t)1 << t->slots_bits;
    struct slot *slots = calloc(2 * count, sizeof(*slots));

    if (!slots)
        return -ENOMEM;
    t->slots = slots;
    t->slots_bits++;
    for (size_t i = 0; i < count; i++)
        if (old[i].live || old[i].ended)
            *find(t, old[i].pid) = old[i];
    free(old);
    return 0;
}

static struct process *new_process(struct timeline *t) {
    size_t block = t->processes / BLOCK_PROCESSES;

    if (t->processes % BLOCK_PROCESSES == 0) {
        /* One pointer for each block; the blocks stay where they are. */
        struct process **blocks = realloc(t->blocks, (block + 1) * sizeof(*blocks));

        if (!blocks)
            return NULL;
        t->blocks = blocks;
        blocks[block] = calloc(BLOCK_PROCESSES, sizeof(**blocks));
        if (!blocks[block])
            return NULL;
    }
    return &t->blocks[block][t->processes++ % BLOCK_PROCESSES];
}

static struct process *start(struct timeline *t, uint32_t pid, uint64_t now_ns) {
    struct slot *slot;
    struct process *process;

    if (2 * t->slots_used >= (size_t)1 << t->slots_bits)
        t->error = grow(t);
    process = t->error ? NULL : new_process(t);
    if (!process) {
        t->error = -ENOMEM;
        return NULL;
    }
    slot = find(t, pid);
    t->slots_used += !slot->live && !slot->ended;
    slot->pid = pid;
    slot->live = process;
    process->pid = pid;
    process->seen_ns = now_ns;
    process->state = TIMELINE_ALIVE;
    process->alive = true;
    process->epoch = t->epoch;
    process->rss.peak.sum = process->rmap.peak.sum = -1;
    t->known++;
    return process;
}

/* The process that an event is about; NULL for a late event, and where there is no memory. */
static struct process *process_of(struct timeline *t, uint32_t pid, uint64_t now_ns) {
    struct slot *slot = find(t, pid);
    struct process *process = slot->live;

    if (!process)
        return slot->ended == t->epoch + 1 ? NULL : start(t, pid, now_ns);
    if (process->epoch != t->epoch) {
        forget(&process->rss);
        forget(&process->rmap);
        process->epoch = t->epoch;
        t->known++;
    }
    return process;
}

static struct timeline_figures figures(const struct held *held) {
    struct timeline_figures figures = {.known = held->known};

    memcpy(figures.values, held->values, sizeof(figures.values));
    return figures;
}

static void end(struct timeline *t, struct process *process) {
    struct slot *slot = find(t, process->pid);

    if (process->epoch == t->epoch) {
        process->last = figures(&process->rss);
        process->last_rmap = figures(&process->rmap);
        take(&t->rss, &process->rss);
        take(&t->rmap, &process->rmap);
        t->known--;
    }
    process->alive = false;
    slot->live = NULL;
    slot->ended = t->epoch + 1;
}

/* --- one function for each type of record --- */

static void fork_(struct timeline *t, const struct event *event) {
    struct process *process = live(t, event->pid), *parent;

    if (process && (process->forked || process->epoch != t->epoch)) {
        process->state = TIMELINE_UNKNOWN;
        end(t, process);
        process = NULL;
    }
    if (!process)
        process = start(t, event->pid, event->time_ns);
    if (!process)
        return;
    parent = live(t, event->fork.parent_pid);
    if (parent && !process->comm[0])
        memmove(process->comm, parent->comm, sizeof(process->comm)); /* the kernel copies it */
    process->ppid = event->fork.parent_pid;
    process->start_ns = event->time_ns;
    process->observed |= TIMELINE_PPID | TIMELINE_START;
    process->forked = true;
}

static void exec(struct timeline *t, const struct event *event) {
    struct process *process = process_of(t, event->pid, event->time_ns);

    if (!process)
        return;
    take(&t->rss, &process->rss);
    take(&t->rmap, &process->rmap);
    memcpy(process->comm, event->exec.comm, sizeof(process->comm));
    process->exec_ns = event->time_ns;
    process->observed |= TIMELINE_EXEC;
}

static void exit_(struct timeline *t, const struct event *event) {
    struct process *process = process_of(t, event->pid, event->time_ns);

    if (!process)
        return;
    process->end_ns = event->time_ns > process->seen_ns ? event->time_ns : process->seen_ns;
    process->wait_status = event->exit.wait_status;
    process->observed |= TIMELINE_END | TIMELINE_WAIT_STATUS;
    process->state = TIMELINE_ENDED;
    end(t, process);
}

static void adopt(struct timeline *t, const struct event *event) {
    struct process *process = process_of(t, event->pid, event->time_ns);

    if (!process && !t->error)
        process = start(t, event->pid, event->time_ns);
    if (!process)
        return;
    memcpy(process->comm, event->adopt.comm, sizeof(process->comm));
    if (!(process->observed & TIMELINE_PPID)) {
        process->ppid = event->adopt.parent_pid;
        process->observed |= TIMELINE_PPID;
    }
}

static void set(struct timeline *t, const struct event *event) {
    struct process *process = process_of(t, event->pid, event->time_ns);

    if (!process || !is_member(event->rss.member))
        return;
    put(&t->rss, &process->rss, event->rss.member, not_negative(event->rss.size_bytes));
    if (event->rss.member != EVENT_MEMBER_SWAP)
        rise(&t->rss, &process->rss, event->time_ns, t->known);
}

static void sync_(struct timeline *t, const struct event *event) {
    struct process *process = process_of(t, event->pid, event->time_ns);
    int32_t member = event->rss.member;

    if (!process || !is_member(member))
        return;
    put(&t->rss, &process->rss, member, not_negative(event->rss.size_bytes));
    put(&t->rmap, &process->rmap, member, not_negative(event->rss.size_bytes));
    if (member == MEMBERS - 1) {
        rise(&t->rss, &process->rss, event->time_ns, t->known);
        rise(&t->rmap, &process->rmap, event->time_ns, t->known);
    }
}

/* Adds the pages of one record, or of two in one step. */
static void map(struct timeline *t, const struct event *event, const struct event *partner) {
    struct process *process = process_of(t, event->pid, event->time_ns);
    bool known = false;

    if (!process)
        return;
    for (const struct event *step = event; step; step = step == event ? partner : NULL) {
        int32_t member = step->rmap.member;

        if (!is_member(member) || !(process->rmap.known & 1u << member))
            continue;
        known = true;
        put(&t->rmap, &process->rmap, member,
            saturated(process->rmap.values[member] + (wide)step->rmap.delta_pages * t->page_size));
    }
    if (known)
        rise(&t->rmap, &process->rmap, event->time_ns, t->known);
}

static void tell(struct timeline *t, const struct event *event) {
    struct process *process = event->pid ? process_of(t, event->pid, event->time_ns) : NULL;
    int32_t member = event->peak.member;
    struct top *top = process ? &process->rss.peak : &t->rss.peak;
    uint32_t told;
    wide sum;

    if (!is_member(member) || (event->pid && !process))
        return;
    top->told[member] = not_negative(event->peak.size_bytes);
    top->told_members |= 1u << member;
    if (member < MEMBERS - 1)
        return;
    told = top->told_members;
    top->told_members = 0;
    sum = (wide)top->told[EVENT_MEMBER_FILE] + top->told[EVENT_MEMBER_ANON] +
          top->told[EVENT_MEMBER_SHMEM];
    /* Nothing was seen where there is no time; a part that is missing was lost. */
    if (!event->peak.at_ns || told != ALL_MEMBERS)
        return;
    if (!top->certain.at_ns || sum > top->certain.sum) {
        top->certain = (struct certain){
            .sum = sum, .at_ns = event->peak.at_ns, .processes = event->peak.processes};
        memcpy(top->certain.values, top->told, sizeof(top->told));
    }
    if (!t->sampled && top->certain.sum < top->sum) /* and of equal ones it is the first */
        return;
    top->sum = top->certain.sum;
    for (member = 0; member < MEMBERS; member++)
        top->values[member] = top->certain.values[member];
    top->known = ALL_MEMBERS;
    top->at_ns = top->certain.at_ns;
    top->processes = top->certain.processes;
    top->observed = true;
}

static void lose(struct timeline *t, uint64_t lost_events) {
    if (__builtin_add_overflow(t->lost_events, lost_events, &t->lost_events))
        t->lost_events = UINT64_MAX;
    t->epoch++;
    t->known = 0;
    forget_layer(&t->rss);
    forget_layer(&t->rmap);
}

/* --- streams --- */

/* What the RMAP record at `index` is one step with; `records` where only later records can tell. */
static size_t partner_of(const uint8_t *view, size_t index, size_t records) {
    struct event event = event_at(view, index);
    size_t end = index + 1 + LOOKAHEAD;
    size_t last = end < records ? end : records;

    if (!event.rmap.addr || event.rmap.delta_pages < 0)
        return NO_PARTNER;
    for (size_t later = index + 1; later < last; later++) {
        struct event other = event_at(view, later);
        uint64_t removed_pages = -(uint64_t)other.rmap.delta_pages;

        if (other.tid != event.tid || other.pid != event.pid)
            continue;
        if (other.type != EVENT_TYPE_RMAP || other.rmap.addr != event.rmap.addr ||
            other.rmap.delta_pages >= 0)
            return NO_PARTNER;
        if (other.rmap.member != event.rmap.member ||
            (removed_pages == (uint64_t)event.rmap.delta_pages && removed_pages > 1))
            return later;
        return NO_PARTNER;
    }
    return end <= records ? NO_PARTNER : records;
}

static bool was_merged(struct timeline *t) {
    bool *merged = &t->merged[t->reduced % (2 * LOOKAHEAD)];
    bool was = *merged;

    *merged = false;
    return was;
}

/*
 * The records before `until`, in a view that goes on to `records`. Returns where it stopped: at
 * `until`, or at a record that cannot be judged before `more` is there.
 */
static size_t reduce(struct timeline *t, const uint8_t *view, size_t until, size_t records,
                     bool more) {
    for (size_t index = 0; index < until; index++, t->reduced++) {
        struct event event = event_at(view, index), other;
        size_t partner;

        switch (event.type) {
            case EVENT_TYPE_RSS:
                set(t, &event);
                break;
            case EVENT_TYPE_RMAP:
                if (!t->has_rmap || was_merged(t))
                    break;
                partner = partner_of(view, index, records);
                if (partner == records && more)
                    return index;
                if (partner < records) {
                    t->merged[(t->reduced + partner - index) % (2 * LOOKAHEAD)] = true;
                    other = event_at(view, partner);
                }
                map(t, &event, partner < records ? &other : NULL);
                break;
            case EVENT_TYPE_SYNC:
                sync_(t, &event);
                break;
            case EVENT_TYPE_FORK:
                fork_(t, &event);
                break;
            case EVENT_TYPE_EXEC:
                exec(t, &event);
                break;
            case EVENT_TYPE_EXIT:
                exit_(t, &event);
                break;
            case EVENT_TYPE_ADOPT:
                adopt(t, &event);
                break;
            case EVENT_TYPE_PEAK:
                tell(t, &event);
                break;
            case EVENT_TYPE_LOST:
                lose(t, event.lost.count);
                break;
        }
        if (t->error)
            return index;
    }
    return until;
}

static void settle(struct timeline *t) {
    size_t records = t->waiting_records;

    t->waiting_records = 0;
    if (!t->error)
        reduce(t, t->waiting, records, records, false);
}

static void count(struct timeline *t, const uint8_t *view, size_t records) {
    uint64_t last_ns = event_at(view, records - 1).time_ns;

    for (size_t index = 0; index < records; index++)
        t->counts[view[index * RECORD]]++;
    if (!t->fed)
        t->first_ns = event_at(view, 0).time_ns;
    if (!t->fed || last_ns > t->last_ns)
        t->last_ns = last_ns;
    t->fed = true;
}

int timeline__feed(struct timeline *t, const void *events, size_t size) {
    const uint8_t *view = events;
    size_t records = size / RECORD, done;

    if (size % RECORD)
        return -EINVAL;
    if (t->error || !records)
        return t->error;
    count(t, view, records);
    if (t->waiting_records) {
        size_t following = records < LOOKAHEAD ? records : LOOKAHEAD;
        size_t waiting = t->waiting_records;

        memcpy(t->waiting + waiting * RECORD, view, following * RECORD);
        done = reduce(t, t->waiting, waiting, waiting + following, true);
        if (t->error)
            return t->error;
        if (done < waiting) {
            /*
             * It takes more than LOOKAHEAD records in all to judge the first, so there are few
             * enough to keep.
             */
            t->waiting_records = waiting + following - done;
            memmove(t->waiting, t->waiting + done * RECORD, t->waiting_records * RECORD);
            return 0;
        }
        t->waiting_records = 0;
    }
    done = reduce(t, view, records, records, true);
    if (t->error)
        return t->error;
    t->waiting_records = records - done;
    memcpy(t->waiting, view + done * RECORD, t->waiting_records * RECORD);
    return 0;
}

struct timeline *timeline__new(uint64_t page_size, bool has_rmap, bool sampled, uint64_t seed) {
    struct timeline *t = calloc(1, sizeof(*t));

    if (!t)
        return NULL;
    t->page_size = page_size;
    t->has_rmap = has_rmap;
    t->sampled = sampled;
    t->seed = seed | 1;
    t->rss.peak.sum = t->rmap.peak.sum = -1;
    t->slots_bits = FIRST_SLOTS_BITS;
    t->slots = calloc((size_t)1 << t->slots_bits, sizeof(*t->slots));
    if (!t->slots) {
        free(t);
        return NULL;
    }
    return t;
}

void timeline__free(struct timeline *t) {
    if (!t)
        return;
    for (size_t block = 0; block * BLOCK_PROCESSES < t->processes; block++)
        free(t->blocks[block]);
    free(t->blocks);
    free(t->slots);
    free(t);
}

/* --- what is asked --- */

static struct timeline_peak peak(const struct top *top) {
    struct timeline_peak peak = {
        .figures.known = top->known, .at_ns = top->at_ns, .processes = top->processes};

    for (int member = 0; member < MEMBERS; member++)
        peak.figures.values[member] = saturated(top->values[member]);
    peak.observed = top->observed;
    return peak;
}

int timeline__result(struct timeline *t, struct timeline_result *result) {
    settle(t);
    *result = (struct timeline_result){
        .rss_peak = peak(&t->rss.peak),
        .rmap_peak = peak(&t->rmap.peak),
        .processes = t->processes,
        .processes_left = t->known,
        .lost_events = t->lost_events,
        .fed = t->fed,
        .first_ns = t->first_ns,
        .last_ns = t->last_ns,
    };
    memcpy(result->counts, t->counts, sizeof(result->counts));
    return t->error;
}

static struct timeline_process public(const struct timeline *t, const struct process *process) {
    bool current = process->alive && process->epoch == t->epoch;
    struct timeline_process out = {
        .pid = process->pid,
        .ppid = process->ppid,
        .observed = process->observed,
        .wait_status = process->wait_status,
        .state = process->alive && !current ? TIMELINE_UNKNOWN : process->state,
        .seen_ns = process->seen_ns,
        .start_ns = process->start_ns,
        .exec_ns = process->exec_ns,
        .end_ns = process->end_ns,
        .rss_peak = peak(&process->rss.peak),
        .rmap_peak = peak(&process->rmap.peak),
        .rss_last = current ? figures(&process->rss) : process->last,
        .rmap_last = current ? figures(&process->rmap) : process->last_rmap,
    };

    memcpy(out.comm, process->comm, sizeof(out.comm));
    return out;
}

size_t timeline__processes(const struct timeline *t, uint64_t *cursor, struct timeline_process *out,
                           size_t room, bool living) {
    size_t found = 0;

    for (; *cursor < t->processes && found < room; ++*cursor) {
        const struct process *process =
            &t->blocks[*cursor / BLOCK_PROCESSES][*cursor % BLOCK_PROCESSES];

        if (process->alive || !living)
            out[found++] = public(t, process);
    }
    return found;
}
