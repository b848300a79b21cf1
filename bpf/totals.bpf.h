/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Figures and peaks kept in the kernel, so that they are exact whatever becomes of the records.
 *
 * Who moves a figure carries the same change into the tree's, so that the tree's are the sum of its
 * address spaces' at all times; a change costs no lock. A sum is at its peak when it is about to
 * fall: only then is it compared with the peak so far, and only a new peak is written, under the
 * tree's lock.
 */
#ifndef MEMTRACK_TOTALS_BPF_H
#define MEMTRACK_TOTALS_BPF_H

/*
 * A figure of an address space: how often it has been changed, and pages, in one word. 2^39 pages
 * are 2 PiB.
 */
#define PAGES_BITS 40
#define ONE_CHANGE (1ULL << PAGES_BITS)

static __always_inline __s64 pages_of(__u64 word) {
    return (__s64)(word << (64 - PAGES_BITS)) >> (64 - PAGES_BITS);
}

static __always_inline __u64 figure_word(struct space *space, __u32 member) {
    return *(volatile __u64 *)&space->words[member & 3];
}

static __always_inline struct tree *tree(void) {
    __u32 zero = 0;

    return bpf_map_lookup_elem(&tree_map, &zero);
}

/*
 * The sum is that of the parts, whatever else others are about to add to them: a peak is one
 * statement.
 */
static __always_inline void rise(struct peak *peak, const __s64 *pages, __u64 at_ns,
                                 __u64 processes) {
    __s64 sum = pages[EVENT_MEMBER_FILE] + pages[EVENT_MEMBER_ANON] + pages[EVENT_MEMBER_SHMEM];

    if (sum <= peak->sum_pages)
        return;
    peak->sum_pages = sum;
    peak->pages[0] = pages[0];
    peak->pages[1] = pages[1];
    peak->pages[2] = pages[2];
    peak->pages[3] = pages[3];
    peak->at_ns = at_ns;
    peak->processes = processes;
}

/*
 * What there is now may be the most there ever was. `member` held `pages` until now, in case it has
 * just changed.
 */
static __noinline void totals_note(struct space *space, __u32 member, __s64 pages) {
    __u32 zero = 0;
    struct tally *counts = bpf_map_lookup_elem(&tally_map, &zero);
    struct tree *all = tree();
    __u64 now = bpf_ktime_get_ns();
    __s64 parts[4], of_all[4];

    if (!all || !counts)
        return;
#pragma unroll
    for (__u32 i = 0; i < EVENT_MEMBERS; i++)
        parts[i] = i == member ? pages : pages_of(figure_word(space, i));
    bpf_spin_lock(&all->lock);
#pragma unroll
    for (__u32 i = 0; i < EVENT_MEMBERS; i++)
        of_all[i] = *(volatile __s64 *)&all->figures.pages[i];
    rise(&space->peak, parts, space->rose_ns ?: now, 0);
    rise(&all->figures.peak, of_all, all->figures.rose_ns ?: now, counts->members);
    bpf_spin_unlock(&all->lock);
}

/* A figure has changed by so many pages, from `before`: carries that into the sums. */
static __always_inline void totals_carry(struct space *space, __u32 member, __s64 change,
                                         __s64 before, __u64 now) {
    struct tree *all = tree();

    if (!all || !change)
        return;
    if (member == EVENT_MEMBER_SWAP) {
        __sync_fetch_and_add(&all->figures.pages[member & 3], change);
        return;
    }
    if (change < 0 && (space->resident > space->peak.sum_pages ||
                       all->figures.resident > all->figures.peak.sum_pages))
        totals_note(space, member, before);
    __sync_fetch_and_add(&all->figures.pages[member & 3], change);
    __sync_fetch_and_add(&space->resident, change);
    __sync_fetch_and_add(&all->figures.resident, change);
    if (change > 0) {
        space->rose_ns = now;
        all->figures.rose_ns = now;
    }
}

/*
 * Moves a figure from the word that it had to these pages, and returns whether nobody else had
 * moved it meanwhile. An instruction of Linux 5.12, which clang takes for none of the older ones
 * that the rest is built for, so it is spelt out: r0 = cmpxchg_64(r1 + 0, r0, r2).
 */
static __always_inline bool figure_swap(struct space *space, __u32 member, __u64 word,
                                        __s64 pages) {
    register __u64 found asm("r0") = word;
    register __u64 *figure asm("r1") = &space->words[member & 3];
    register __u64 step asm("r2") = word + (__u64)(pages - pages_of(word)) + ONE_CHANGE;

    asm volatile(".8byte 0x000000f1000021db" : "+r"(found) : "r"(figure), "r"(step) : "memory");
    return found == word;
}

/* How often a sum that others overtake is taken again. */
#define TOTALS_ATTEMPTS 3

/*
 * Sets a figure to what the counter says, or to 0 once the address space has been closed, and
 * returns it. Also for programs that must load where there is no figure_swap: others who come here
 * wait for the lock, and who swaps between our look at the word and our step is found out and made
 * good.
 */
__noinline __s64 totals_settle(__u32 place, __u32 member, __u64 now) {
    struct space *space = bpf_map_lookup_elem(&spaces, &place);
    __s64 pages = 0, change = 0, before = 0;
    struct tree *all = tree();
    bool settled = false;
    __u64 word, step, mm;

    if (!settings.totals || !space || !all)
        return 0;
    /* the compiler must not find out where it was bounded: the verifier has forgotten by then */
    barrier_var(member);
    for (int attempt = 0; attempt < TOTALS_ATTEMPTS && !settled; attempt++) {
        mm = *(volatile __u64 *)&space->mm;
        word = figure_word(space, member);
        pages = mm ? counter_pages(mm, member) : 0;
        if (mm && torn_down_at(mm)) { /* what it held last is what it had before */
            pages = pages_of(word);
            break;
        }
        step = (__u64)(pages - pages_of(word)) + ONE_CHANGE;
        bpf_spin_lock(&all->lock);
        if (figure_word(space, member) == word && *(volatile __u64 *)&space->mm == mm) {
            __sync_fetch_and_add(&space->words[member & 3], step);
            settled = figure_word(space, member) == word + step;
            before = change ? before : pages_of(word);
            change += pages - pages_of(word);
        }
        bpf_spin_unlock(&all->lock);
    }
    totals_carry(space, member, change, before, now);
    return pages;
}

/* Whether a change since the last record is worth another; it is taken to get one. */
static __always_inline bool worth_telling(struct space *space, __u32 member, __s64 pages,
                                          __u64 now) {
    __s64 moved = pages - space->told_pages[member & 3];
    __u64 distance = moved < 0 ? -moved : moved;

    if (!(settings.resolution_pages && distance >= settings.resolution_pages) &&
        !(settings.resolution_ns && now - space->told_ns[member & 3] >= settings.resolution_ns))
        return false;
    space->told_pages[member & 3] = pages;
    space->told_ns[member & 3] = now;
    return true;
}

/* The address space leaves the tree, and what it held with it. */
static __always_inline void totals_close(struct space *space) {
    *(volatile __u64 *)&space->mm = 0;
    if (!settings.totals)
        return;
    for (__u32 member = 0; member < EVENT_MEMBERS; member++)
        totals_settle(space->place, member, 0);
}

/* The peak so far was the former process's; that of the next one begins with what there is. */
static __always_inline void totals_restart_peak(struct space *space) {
    struct tree *all = tree();

    if (!settings.totals || !all)
        return;
    bpf_spin_lock(&all->lock);
    space->peak.sum_pages = 0;
    bpf_spin_unlock(&all->lock);
}

#endif
