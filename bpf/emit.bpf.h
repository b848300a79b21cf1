/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Writing event records: a ring sample holds one record or several that belong together. */
#ifndef MEMTRACK_EMIT_BPF_H
#define MEMTRACK_EMIT_BPF_H

static __always_inline void fill(struct event *event, __u8 type, __u32 pid, __u32 tid,
                                 __u64 time_ns) {
    __builtin_memset(event, 0, sizeof(*event));
    event->type = type;
    event->time_ns = time_ns;
    event->pid = pid;
    event->tid = tid;
}

static __always_inline void fill_figure(struct event *event, __u8 type, __u32 pid, __u32 tid,
                                        __u64 time_ns, __u32 member, __s64 pages) {
    fill(event, type, pid, tid, time_ns);
    event->rss.member = member;
    event->rss.size_bytes = counter_bytes(pages);
}

/*
 * After a loss the first that fits is a LOST: what stands behind it must not be added to figures
 * that may have fallen meanwhile. How many were lost the consumer says. Returns false where it does
 * not fit, so that nothing else does.
 */
static __noinline bool gap_told(void) {
    __u32 zero = 0;
    struct tally *counts = bpf_map_lookup_elem(&tally_map, &zero);
    struct event *e;
    __u64 lost;

    if (!counts)
        return true;
    lost = *(volatile __u64 *)&counts->lost_ring + *(volatile __u64 *)&counts->lost_lifecycle;
    if (lost == *(volatile __u64 *)&counts->lost_told)
        return true;
    e = bpf_ringbuf_reserve(&ring, sizeof(*e), 0);
    if (!e)
        return false;
    fill(e, EVENT_TYPE_LOST, 0, 0, bpf_ktime_get_ns());
    *(volatile __u64 *)&counts->lost_told = lost;
    lifecycle_submit(e);
    return true;
}

/* A record of RSS or RMAP, which leave the headroom free. */
static __always_inline struct event *sample_reserve(__u64 *waiting) {
    struct event *e = 0;

    *waiting = bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA);
    if (ring_has_room(*waiting) && gap_told())
        e = bpf_ringbuf_reserve(&ring, sizeof(*e), 0);
    if (!e)
        TALLY(lost_ring, 1);
    return e;
}

/*
 * A record that must not be lost for want of room: it may use the headroom that RSS and RMAP leave.
 */
static __always_inline struct event *lifecycle_reserve(__u8 type, __u32 pid) {
    struct event *e = gap_told() ? bpf_ringbuf_reserve(&ring, sizeof(*e), 0) : 0;

    if (e)
        fill(e, type, pid, acting_tid(), bpf_ktime_get_ns());
    else
        TALLY(lost_lifecycle, 1);
    return e;
}

/*
 * One figure as it is now, in pages, to which one thread may add what it keeps to itself; the
 * totals get it too.
 */
static __noinline __s64 sync_member(struct space *space, __u32 member, struct task_struct *own,
                                    __u64 now) {
    /* out of the map it is a number, which functions of their own take */
    __u64 mm = *(volatile __u64 *)&space->mm;
    __s64 pages =
        settings.totals ? totals_settle(space->place, member, now) : counter_pages(mm, member);

    if (settings.coarse)
        space->told_pages[member & 3] = pages;
    if (!settings.counters_are_percpu)
        pages += own ? thread_cache(own, member) : space->cached[member & 3];
    return pages;
}

/*
 * Absolute figures of an address space. Reserved before they are summed: whatever the sum misses
 * has its own record later in the ring, so the last record of a member is never behind.
 */
static __always_inline void emit_sync(struct space *space, struct task_struct *own) {
    __u64 now = bpf_ktime_get_ns(), mm = *(volatile __u64 *)&space->mm;
    struct event *e;

    if (!settings.sums_known)
        return;
    /*
     * Where no events follow, a figure of now would stand for what the process holds until it ends.
     */
    if (!settings.every_event && !settings.coarse) {
        for (__u32 member = 0; member < EVENT_MEMBERS; member++)
            sync_member(space, member, own, now);
        return;
    }
    e = gap_told() ? bpf_ringbuf_reserve(&ring, EVENT_MEMBERS * sizeof(*e), 0) : 0;
    if (!e) {
        TALLY(lost_lifecycle, EVENT_MEMBERS);
        for (__u32 member = 0; member < EVENT_MEMBERS; member++)
            sync_member(space, member, own, now);
        return;
    }
    for (__u32 member = 0; member < EVENT_MEMBERS; member++)
        fill_figure(&e[member], EVENT_TYPE_SYNC, space->pid, acting_tid(), now, member,
                    sync_member(space, member, own, now));
    /* A walk can be overtaken by the end of the process that it is at: EXIT or EXEC says so. */
    if (!mm || *(volatile __u64 *)&space->mm != mm || torn_down_at(mm))
        bpf_ringbuf_discard(e, BPF_RB_NO_WAKEUP);
    else
        lifecycle_submit(e);
}

/* Whether the records do not tell everything, so that what the kernel kept must be told as well. */
static __always_inline bool totals_wanted(void) {
    __u32 zero = 0;
    struct tally *counts = bpf_map_lookup_elem(&tally_map, &zero);

    return settings.totals && counts &&
           (!settings.every_event || counts->lost_ring || counts->lost_lifecycle);
}

#define TOTALS_RECORDS (2 * EVENT_MEMBERS)

/*
 * Two sizes, each a constant, as the verifier wants them: kept apart, or the compiler would choose
 * between numbers.
 */
static __always_inline struct event *totals_reserve(bool ends) {
    struct event *e;

    if (!gap_told())
        return 0;
    if (ends) {
        e = bpf_ringbuf_reserve(&ring, (TOTALS_RECORDS + 1) * sizeof(*e), 0);
        barrier();
        return e;
    }
    return bpf_ringbuf_reserve(&ring, TOTALS_RECORDS * sizeof(*e), 0);
}

/*
 * The peak of an address space so far, and what it holds as it was stored last: exact when its
 * process ends. Where it `ends`, with EXIT in the same sample: a LOST in between, of whoever else,
 * would void the figures. Returns whether all of it was told.
 */
static __noinline bool emit_totals(struct space *space, bool ends, __u32 wait_status) {
    __u32 pid = space->pid, tid = acting_tid();
    struct tree *all = tree();
    struct peak peak = {};
    __s64 pages[4] = {};
    struct event *e;
    __u64 now;

    if (!totals_wanted() || !all)
        return false;
    e = totals_reserve(ends);
    if (!e) {
        TALLY(lost_lifecycle, TOTALS_RECORDS);
        return false;
    }
#pragma unroll
    for (__u32 member = 0; member < EVENT_MEMBERS; member++)
        pages[member] = pages_of(figure_word(space, member));
    now = bpf_ktime_get_ns();
    bpf_spin_lock(&all->lock);
    rise(&space->peak, pages, space->rose_ns ?: now, 0);
    peak = space->peak;
    bpf_spin_unlock(&all->lock);
#pragma unroll
    for (__u32 member = 0; member < EVENT_MEMBERS; member++) {
        fill_figure(&e[member], EVENT_TYPE_PEAK, pid, tid, now, member, peak.pages[member]);
        e[member].peak.at_ns = peak.at_ns;
        fill_figure(&e[EVENT_MEMBERS + member], EVENT_TYPE_SYNC, pid, tid, now, member,
                    pages[member]);
    }
    if (ends) {
        fill(&e[TOTALS_RECORDS], EVENT_TYPE_EXIT, pid, tid, now);
        e[TOTALS_RECORDS].exit.wait_status = wait_status;
    }
    lifecycle_submit(e);
    return true;
}

#endif
