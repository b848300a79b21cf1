/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The rmap sum of each address space, kept in the kernel too: it moves whether or not there was
 * room for a record, so that after a loss it says how to go on. The counters do not: the kernel
 * moves them before or after the reverse map, a batch of pages at a time, and a sum that began in
 * between would be off for good.
 */
#ifndef MEMTRACK_RMAP_SUMS_BPF_H
#define MEMTRACK_RMAP_SUMS_BPF_H

struct rmap_sums {
    /* the address space that they have a base of; any other: they have none yet */
    __u64 mm;
    __u64 begun;        /* changes that have been begun, */
    __u64 done;         /* ... and that have been added and put into the ring */
    __s64 pages[4];     /* by member; not swap */
    __s64 migrating[4]; /* see migration.bpf.h */
    __u64 bases;        /* how often they have begun anew from the counters, */
    __s64 base[4];      /* ... and what these said, less what migration has dropped since */
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1); /* as many as spaces, and in their places, if the layer is on */
    __type(key, __u32);
    __type(value, struct rmap_sums);
} rmap_sums SEC(".maps");

static __always_inline struct rmap_sums *rmap_sums_of(struct space *space) {
    __u32 place = space->place;

    return bpf_map_lookup_elem(&rmap_sums, &place);
}

#define READ_NOW(value) (*(volatile __typeof__(value) *)&(value))

/*
 * A change is added and then reserved in the ring; what a SYNC says must be the sum of exactly
 * those that are reserved before it. So nothing may be in between: whatever was begun when the sums
 * were read had been done before the SYNC was reserved. Otherwise the SYNC is taken back and tried
 * again.
 */
#define RMAP_SYNC_ATTEMPTS 8

static __always_inline bool undisturbed(struct rmap_sums *sums, __u64 done) {
    return READ_NOW(sums->begun) == done;
}

/* The sum of one member begins anew at the counter. */
static __always_inline __s64 rmap_base(struct space *space, struct rmap_sums *sums, __u32 member,
                                       struct task_struct *own, __u64 now) {
    __s64 pages = sync_member(space, member, own, now);

    pages = pages < 0 ? 0 : pages;
    sums->migrating[member & 3] = 0;
    sums->pages[member & 3] = pages;
    sums->base[member & 3] = pages;
    return pages;
}

/*
 * A base from the counters. At fork and exec nobody runs in the address space, and it is exact:
 * what others do to it then (reclaim) takes a page off the counters and the reverse map under one
 * lock, so that a SYNC has to fall between the two within a microsecond. `running`: it is adopted
 * in the middle of its life. Then a base is taken only when the counters stood still while it was
 * made, which leaves the kernel's batches as above: each thread that unmaps or maps at that very
 * moment can leave the base off by what it holds in its hands, at most the pages of one page table.
 */
static __noinline void rmap_restart(struct space *space, struct task_struct *own, bool running) {
    struct rmap_sums *sums = rmap_sums_of(space);
    __u64 mm = READ_NOW(space->mm), now, done;
    __u32 tid = acting_tid();
    struct event *e;

    if (!sums)
        return;
    for (int attempt = 0; attempt < RMAP_SYNC_ATTEMPTS; attempt++) {
        bool settled = true;

        done = READ_NOW(sums->done);
        now = bpf_ktime_get_ns();
        e = gap_told() ? bpf_ringbuf_reserve(&ring, EVENT_MEMBERS * sizeof(*e), 0) : 0;
        sums->mm = mm;
        sums->bases++;
        if (!e) {
            TALLY(lost_lifecycle, EVENT_MEMBERS);
            for (__u32 member = 0; member < EVENT_MEMBERS; member++)
                rmap_base(space, sums, member, own, now);
            return;
        }
        for (__u32 member = 0; member < EVENT_MEMBERS; member++)
            fill_figure(&e[member], EVENT_TYPE_SYNC, space->pid, tid, now, member,
                        rmap_base(space, sums, member, own, now));
        if (running && settings.counters_are_percpu)
            for (__u32 member = 0; member < EVENT_MEMBERS; member++)
                settled = settled && sums->pages[member] == counter_pages(mm, member);
        if (torn_down_at(mm)) {
            bpf_ringbuf_discard(e, BPF_RB_NO_WAKEUP);
            return;
        }
        if (settled && undisturbed(sums, done)) {
            lifecycle_submit(e);
            return;
        }
        if (attempt == RMAP_SYNC_ATTEMPTS - 1) {
            TALLY(bases_unsettled, 1);
            lifecycle_submit(e);
            return;
        }
        bpf_ringbuf_discard(e, BPF_RB_NO_WAKEUP);
    }
}

#define RMAP_MEMBERS 3 /* without swap */

/*
 * How often to look for an instant at which nobody is in between; as long as a change takes, about.
 */
#define RESUME_SPINS 64

/* The figures, and what is missing to the sums. False if somebody came in between. */
static __noinline bool resume_once(struct space *space, struct rmap_sums *sums) {
    __u32 pid = space->pid, tid = acting_tid(), next = EVENT_MEMBERS;
    __u64 mm = READ_NOW(space->mm), done, now = bpf_ktime_get_ns();
    struct event *e;

    done = READ_NOW(sums->done);
    for (int spin = 0; spin < RESUME_SPINS && !undisturbed(sums, done); spin++)
        done = READ_NOW(sums->done);
    e = gap_told() ? bpf_ringbuf_reserve(&ring, (EVENT_MEMBERS + RMAP_MEMBERS) * sizeof(*e), 0) : 0;
    if (!e)
        return false;
#pragma unroll
    for (__u32 member = 0; member < EVENT_MEMBERS; member++) {
        __s64 pages = sync_member(space, member, 0, now);

        pages = pages < 0 ? 0 : pages;
        fill_figure(&e[member], EVENT_TYPE_SYNC, pid, tid, now, member, pages);
        if (member == EVENT_MEMBER_SWAP)
            continue;
        fill(&e[next], EVENT_TYPE_RMAP, pid, tid, now);
        e[next].rmap.member = member;
        e[next].rmap.delta_pages = READ_NOW(sums->pages[member]) - pages;
        next++;
    }
    if (torn_down_at(mm)) {
        bpf_ringbuf_discard(e, BPF_RB_NO_WAKEUP);
        return true;
    }
    if (!undisturbed(sums, done)) {
        bpf_ringbuf_discard(e, BPF_RB_NO_WAKEUP);
        return false;
    }
    lifecycle_submit(e);
    return true;
}

/*
 * Absolute figures of an address space that has a base: the counters for the rss layer, and what
 * takes the rmap layer, which restarts with every SYNC, from them to its own sums. If it never
 * holds still, because many CPUs change pages of it, that is a loss as if there were no room, and
 * the recorder asks again.
 */
static __noinline void rmap_resume(struct space *space) {
    struct rmap_sums *sums = rmap_sums_of(space);

    if (!sums)
        return;
    for (int attempt = 0; attempt < RMAP_SYNC_ATTEMPTS; attempt++)
        if (resume_once(space, sums))
            return;
    TALLY(lost_lifecycle, EVENT_MEMBERS + RMAP_MEMBERS);
}

/*
 * The figures that an address space begins with, as the fork copied them or the exec placed them.
 */
static __always_inline void report_start(struct space *space, struct task_struct *own) {
    if (settings.rmap)
        rmap_restart(space, own, false);
    else
        emit_sync(space, own);
}

/*
 * The figures of one that runs. `recount`: changes went by unseen, so that the counters know better
 * than the sums.
 */
static __always_inline void report_again(struct space *space, bool recount) {
    struct rmap_sums *sums = rmap_sums_of(space);

    if (!settings.rmap)
        emit_sync(space, 0);
    else if (!recount && sums && sums->mm == READ_NOW(space->mm))
        rmap_resume(space);
    else
        rmap_restart(space, 0, true);
}

/* Whatever was in this place before is not the address space's. */
static __always_inline void rmap_forget(struct space *space) {
    struct rmap_sums *sums = rmap_sums_of(space);

    if (sums)
        sums->mm = 0;
}

#endif
