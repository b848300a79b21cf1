/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Figures and peaks kept in the kernel, so that they are exact whatever becomes of the records. One lock for the whole
 * tree: its peak is a sum at one instant, and there is no such instant without one.
 */
#ifndef MEMTRACK_TOTALS_BPF_H
#define MEMTRACK_TOTALS_BPF_H

static __always_inline struct tree *tree(void)
{
    __u32 zero = 0;

    return bpf_map_lookup_elem(&tree_map, &zero);
}

static __always_inline __s64 resident(const __s64 *pages)
{
    return pages[EVENT_MEMBER_FILE] + pages[EVENT_MEMBER_ANON] + pages[EVENT_MEMBER_SHMEM];
}

static __always_inline void rise(struct peak *peak, const __s64 *pages, __u64 now, __u64 processes)
{
    __s64 sum = resident(pages);

    if (sum <= peak->sum_pages)
        return;
    peak->sum_pages = sum;
    peak->pages[0] = pages[0];
    peak->pages[1] = pages[1];
    peak->pages[2] = pages[2];
    peak->pages[3] = pages[3];
    peak->at_ns = now;
    peak->processes = processes;
}

/* Whether a change since the last record is worth another. */
static __always_inline bool worth_telling(struct space *space, __u32 member, __s64 pages, __u64 now)
{
    __s64 moved = pages - space->told_pages[member];
    __u64 distance = moved < 0 ? -moved : moved;

    return (settings.resolution_pages && distance >= settings.resolution_pages) ||
           (settings.resolution_ns && now - space->told_ns[member] >= settings.resolution_ns);
}

enum totals_result {
    TOTALS_STALE,  /* somebody else has set the figure since `changes` was read: sum again */
    TOTALS_QUIET,  /* set, and not worth a record */
    TOTALS_TELL,   /* set, and worth one */
    TOTALS_CLOSED, /* the address space has left the tree */
};

/*
 * Sets one figure, summed after `changes` was read, and says whether it is worth a record, as with `tell` it always is.
 * A sum that was overtaken is refused, so that the last one to be stored is never behind the counter.
 */
static __always_inline enum totals_result totals_set(struct space *space, __u64 mm, __u32 member, __u64 changes,
                                                     __s64 pages, __u64 now, bool tell)
{
    __u32 zero = 0;
    struct tally *counts = bpf_map_lookup_elem(&tally_map, &zero);
    enum totals_result result = TOTALS_CLOSED;
    struct tree *all = tree();

    if (!all || !counts || member >= EVENT_MEMBERS)
        return TOTALS_CLOSED;
    pages = pages < 0 ? 0 : pages;
    bpf_spin_lock(&all->lock);
    if (space->mm == mm) {
        result = TOTALS_STALE;
        if (space->changes[member] == changes) {
            space->changes[member] = changes + 1;
            all->figures.pages[member] += pages - space->pages[member];
            space->pages[member] = pages;
            rise(&space->peak, space->pages, now, 0);
            rise(&all->figures.peak, all->figures.pages, now, counts->members);
            result = TOTALS_QUIET;
            if (settings.coarse && (tell || worth_telling(space, member, pages, now))) {
                space->told_pages[member] = pages;
                space->told_ns[member] = now;
                result = TOTALS_TELL;
            }
        }
    }
    bpf_spin_unlock(&all->lock);
    return result;
}

/* Before a figure is summed. */
static __always_inline __u64 totals_changes(struct space *space, __u32 member)
{
    return *(volatile __u64 *)&space->changes[member & 3];
}

/* The address space leaves the tree, and what it held with it. */
static __always_inline void totals_close(struct space *space, __u64 mm)
{
    struct tree *all = tree();

    if (!settings.totals || !all)
        return;
    bpf_spin_lock(&all->lock);
    if (space->mm == mm) {
        space->mm = 0;
        all->figures.pages[0] -= space->pages[0];
        all->figures.pages[1] -= space->pages[1];
        all->figures.pages[2] -= space->pages[2];
        all->figures.pages[3] -= space->pages[3];
    }
    bpf_spin_unlock(&all->lock);
}

/* The peak so far was the former process's; that of the next one begins with what there is. */
static __always_inline void totals_restart_peak(struct space *space, __u64 now)
{
    struct tree *all = tree();

    if (!settings.totals || !all)
        return;
    bpf_spin_lock(&all->lock);
    space->peak.sum_pages = 0;
    rise(&space->peak, space->pages, now, 0);
    bpf_spin_unlock(&all->lock);
}

#endif
