/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Pages on the move. Migration, compaction and the split of a huge page take a page out of the
 * reverse map, leave a migration entry in the page table, and map the page again afterwards. The
 * counters do not move: they count an entry as a page. A fork in between copies entries, and the
 * child's counters, which its sum begins with, have them in. Mapping those again must not be
 * counted a second time, while entries of the address space's own life, whose removal was counted,
 * must be. Which is which is not to be seen; but how many of the latter there are is:
 *
 * rmap_sums.migrating = pages removed inside the functions that make entries, since the sum's base
 *                       - pages mapped inside the function that takes them back, and counted.
 *
 * Mapping inside that function counts while there are such pages. It does not matter which page it
 * is, as in the end all entries are taken back: of a child that inherited k entries and later made
 * n, n are counted and k are not, in any order.
 *
 * What this leaves inexact, each only in a process forked while pages of its parent were on the
 * move:
 *  - inherited entries that the child unmaps before they are taken back (within the milliseconds of
 * a migration; not by exit or exec, which close the account) stay in its sum: nothing of that
 * passes the reverse map. At most as many pages as it inherited entries for.
 *  - entries of its own that it unmaps stay in `migrating`, so that as many inherited ones would be
 * counted twice.
 *  - two CPUs that map pages of one address space at the same instant may both take the last of
 * `migrating`, which is then below zero, and one page counts twice until the next migration of a
 * page of this address space. Any later SYNC from the counters ends each of these.
 */
#ifndef MEMTRACK_MIGRATION_BPF_H
#define MEMTRACK_MIGRATION_BPF_H

/*
 * What a task is inside of; in the low bits of its task_struct's address, which is aligned to a
 * cache line.
 */
enum migration_side {
    MIGRATION_MAKES = 1, /* try_to_migrate_one: makes entries of one folio */
    /* migrate_vma_collect_pmd: of all pages of a range; may call the two others. */
    MIGRATION_COLLECTS = 2,
    MIGRATION_TAKES = 3, /* remove_migration_pte: takes them back */
};

struct migration {
    /* the folio; for MIGRATION_COLLECTS the mm. A mark that was left behind fits nothing else. */
    __u64 subject;
    __u64 mm;
    __u64 bases; /* rmap_sums.bases when it began, or as of the last drop */
    __u64 over;  /* the first of the two programs has seen it end */
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    /* tasks that are inside at once: one per CPU, more only where they can be preempted */
    __uint(max_entries, 4096);
    __type(key, __u64);
    __type(value, struct migration);
} migrations SEC(".maps");

/* While it is 0, as it nearly always is, nobody need be looked up. */
__u64 migrations_under_way;

static __always_inline struct migration *migration_of_current(enum migration_side side) {
    __u64 key = bpf_get_current_task() | side;

    return bpf_map_lookup_elem(&migrations, &key);
}

static __always_inline bool migration_inside(enum migration_side side, __u64 subject) {
    struct migration *mark = migration_of_current(side);

    return mark && mark->subject == subject && !mark->over;
}

static __always_inline __u64 space_bases(__u64 mm) {
    struct space *space = space_of(mm);
    struct rmap_sums *sums = space ? rmap_sums_of(space) : 0;

    return sums ? sums->bases : 0;
}

/*
 * These functions can be preempted, and the kernel skips a program that another task on the CPU is
 * in the middle of. So each hook is there twice, in two programs that do the same: for both to be
 * skipped, it takes two such tasks.
 */
static __always_inline int migration_begins(enum migration_side side, __u64 subject, __u64 mm) {
    struct migration fresh = {.subject = subject, .mm = mm}, *mark = migration_of_current(side);
    __u64 key = bpf_get_current_task() | side;

    fresh.bases = space_bases(mm);
    if (!mark) {
        if (!bpf_map_update_elem(&migrations, &key, &fresh, BPF_NOEXIST))
            __sync_fetch_and_add(&migrations_under_way, 1);
        return 0;
    }
    if (!mark->over && mark->subject == subject && mark->mm == mm)
        return 0; /* by the first of the two programs */
    if (!mark->over)
        TALLY(migrations_missed, 1); /* neither of the two saw the end of the last */
    *mark = fresh;
    return 0;
}

/*
 * Of so many pages on which an entry is taken back, those whose removal was counted; they are on
 * the move no more.
 */
static __always_inline __s64 migrating_take(struct rmap_sums *sums, __u32 member, __s64 pages) {
    __s64 counted = READ_NOW(sums->migrating[member & 3]);

    if (counted > pages)
        counted = pages;
    if (counted <= 0)
        return 0;
    __sync_fetch_and_add(&sums->migrating[member & 3], -counted);
    return counted;
}

/*
 * How many pages of a change count. A huge page that is split on the way comes in as small ones
 * before it goes.
 */
static __noinline __s64 migration_counts(struct rmap_sums *sums, __u32 member, __s64 pages,
                                         __u64 folio) {
    if (migration_inside(MIGRATION_TAKES, folio))
        return pages > 0 ? migrating_take(sums, member, pages) : pages;
    if (migration_inside(MIGRATION_MAKES, folio) || migration_inside(MIGRATION_COLLECTS, sums->mm))
        __sync_fetch_and_add(&sums->migrating[member & 3], -pages);
    return pages;
}

/*
 * Whether a page of an entry that becomes the zero page is to be taken off the sum. Not if its
 * removal was counted: then it is gone already. Nor if the base lacks it: the counter moves first,
 * and the program that sees it runs afterwards. In the call in which the base was taken, the
 * counter tells: it is what it was then, as nobody else moves it yet.
 */
static __always_inline bool drop_counts(struct migration *mark, struct rmap_sums *sums,
                                        __u32 member) {
    if (mark->bases != sums->bases) {
        mark->bases = sums->bases;
        if (counter_pages(mark->mm, member) == sums->base[member & 3])
            return false;
    }
    __sync_fetch_and_add(&sums->base[member & 3], -1);
    return !migrating_take(sums, member, 1);
}

/* Either of the two programs may be the first. */
static __always_inline int migration_ends(enum migration_side side) {
    __u64 key = bpf_get_current_task() | side;
    struct migration *mark = bpf_map_lookup_elem(&migrations, &key);

    if (!mark)
        TALLY(migrations_missed, 1);
    else if (!mark->over)
        mark->over = 1;
    else if (!bpf_map_delete_elem(&migrations, &key))
        __sync_fetch_and_add(&migrations_under_way, -1);
    return 0;
}

#endif
