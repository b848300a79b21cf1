/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Writing event records: a ring sample holds one record or several that belong together. */
#ifndef MEMTRACK_EMIT_BPF_H
#define MEMTRACK_EMIT_BPF_H

static __always_inline void fill(struct event *event, __u8 type, __u32 pid, __u32 tid, __u64 time_ns)
{
    __builtin_memset(event, 0, sizeof(*event));
    event->type = type;
    event->time_ns = time_ns;
    event->pid = pid;
    event->tid = tid;
}

static __always_inline void fill_sync(struct event *event, __u32 pid, __u32 tid, __u64 time_ns, __u32 member,
                                      __s64 pages)
{
    fill(event, EVENT_TYPE_SYNC, pid, tid, time_ns);
    event->rss.member = member;
    event->rss.size_bytes = counter_bytes(pages);
}

/* A record of RSS or RMAP, which leave the headroom free. */
static __always_inline struct event *sample_reserve(__u64 *waiting)
{
    struct event *e = 0;

    *waiting = bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA);
    if (ring_has_room(*waiting))
        e = bpf_ringbuf_reserve(&ring, sizeof(*e), 0);
    if (!e)
        TALLY(lost_ring, 1);
    return e;
}

/* A record that must not be lost for want of room: it may use the headroom that RSS and RMAP leave. */
static __always_inline struct event *lifecycle_reserve(__u8 type, __u32 pid)
{
    struct event *e = bpf_ringbuf_reserve(&ring, sizeof(*e), 0);

    if (e)
        fill(e, type, pid, acting_tid(), bpf_ktime_get_ns());
    else
        TALLY(lost_lifecycle, 1);
    return e;
}

/*
 * Absolute figures of an address space, to which one thread may add what it keeps to itself. Reserved before they are
 * summed: whatever the sum misses has its own record later in the ring, so the last record of a member is never behind.
 */
static __always_inline void emit_sync(__u64 mm, struct space *space, struct task_struct *own)
{
    __u32 pid = space->pid, tid = acting_tid();
    struct event *e = bpf_ringbuf_reserve(&ring, EVENT_MEMBERS * sizeof(*e), 0);
    __u64 now;

    if (!e) {
        TALLY(lost_lifecycle, EVENT_MEMBERS);
        return;
    }
    now = bpf_ktime_get_ns();
    for (__u32 member = 0; member < EVENT_MEMBERS; member++) {
        __s64 pages = counter_pages(mm, member);

        if (!settings.counters_are_percpu)
            pages += own ? thread_cache(own, member) : space->cached[member];
        fill_sync(&e[member], pid, tid, now, member, pages);
    }
    bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
}

#endif
