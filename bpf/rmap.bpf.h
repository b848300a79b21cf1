/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The reverse map, one signed delta per change. Every page that a page table maps enters and leaves
 * through these functions, so the sum of the deltas is the resident set, whatever order they arrive
 * in. One program per kernel function; which of them are loaded is decided per family in
 * python/memtrack/hooks.py.
 */
#ifndef MEMTRACK_RMAP_BPF_H
#define MEMTRACK_RMAP_BPF_H

/*
 * include/linux/page-flags.h (FOLIO_MAPPING_* from v6.16 on). Both bits are set in the mapping of a
 * KSM page.
 */
#define PAGE_MAPPING_ANON 1UL
#define PAGE_MAPPING_FLAGS 3UL

/*
 * include/linux/mm.h. These pages are not in the kernel's counters and must not enter here either.
 */
#define VM_HUGETLB 0x00400000

/*
 * What a PMD entry maps when it maps a page: as many pages as a page table of 8-byte entries holds.
 */
static __always_inline __s64 pmd_pages(void) {
    return (1LL << settings.page_shift) / sizeof(__u64);
}

static __always_inline __s64 pud_pages(void) {
    return pmd_pages() * pmd_pages();
}

/* Where a folio's address comes from, and so how its members are read. */
enum folio_source {
    FOLIO_ARGUMENT, /* the hook's own argument, whose type the verifier knows: by ordinary loads */
    FOLIO_COMPUTED, /* from a page: by bpf_probe_read_kernel(), which is several times as dear */
};

/*
 * What a change needs to know of a folio. `number` is its address, computed with and looked up, not
 * read through.
 */
struct folio_seen {
    __u64 number;
    unsigned long flags;
    unsigned long mapping;
    unsigned long index;
};

static __always_inline unsigned long folio_flags(struct folio *folio) {
    struct folio___pre_v6_18 *old = (void *)folio;

    return bpf_core_field_exists(folio->flags.f) ? folio->flags.f : old->flags;
}

static __always_inline struct folio_seen folio_see(struct folio *folio, enum folio_source source) {
    struct folio___pre_v6_18 *old = (void *)folio;

    if (source == FOLIO_ARGUMENT)
        return (struct folio_seen){as_number(folio), folio_flags(folio), as_number(folio->mapping),
                                   folio->index};
    return (struct folio_seen){
        .number = (__u64)folio,
        .flags = bpf_core_field_exists(folio->flags.f) ? BPF_CORE_READ(folio, flags.f)
                                                       : BPF_CORE_READ(old, flags),
        .mapping = (unsigned long)BPF_CORE_READ(folio, mapping),
        .index = BPF_CORE_READ(folio, index),
    };
}

static __always_inline bool has_flag(unsigned long flags, __u64 bit) {
    return flags & (1UL << bit);
}

/* Of a hook's own argument. */
static __always_inline __s64 folio_pages(struct folio *folio) {
    struct folio___pre_v6_6 *old = (void *)folio;
    __u8 order;

    if (!has_flag(folio_flags(folio), bpf_core_enum_value(enum pageflags, PG_head)))
        return 1;
    order = bpf_core_field_exists(old->_folio_order) ? old->_folio_order : folio->_flags_1;
    return 1LL << (order & 31);
}

/* As the kernel's mm_counter(): the anon bit first, then swap backing means shmem. */
static __always_inline __u32 folio_file_member(const struct folio_seen *folio) {
    return has_flag(folio->flags, bpf_core_enum_value(enum pageflags, PG_swapbacked))
               ? EVENT_MEMBER_SHMEM
               : EVENT_MEMBER_FILE;
}

static __always_inline __u32 folio_member(const struct folio_seen *folio) {
    return folio->mapping & PAGE_MAPPING_ANON ? EVENT_MEMBER_ANON : folio_file_member(folio);
}

/*
 * The folio that a page of the older functions belongs to. The page comes as a number (as_number),
 * because the verifier lets us subtract a number only from another.
 */
static __always_inline struct folio *page_folio(struct page *page) {
    unsigned long head = BPF_CORE_READ(page, compound_head);

    return (void *)(head & 1 ? head - 1 : (unsigned long)page);
}

/*
 * Where a page is mapped, from its place in its folio and the folio's in the mapping: what
 * linear_page_index() does, the other way round. 0 where the index is no offset: in a KSM page, and
 * in one that is not of the mapped file's (a driver's, which vm_insert_page() mapped).
 */
static __always_inline __u64 page_address(const struct folio_seen *folio, __u64 page,
                                          struct vm_area_struct *vma) {
    if ((folio->mapping & PAGE_MAPPING_FLAGS) != PAGE_MAPPING_ANON &&
        (!folio->mapping || folio->mapping != as_number(vma->vm_file->f_mapping)))
        return 0;
    unsigned long nth = (page - folio->number) / bpf_core_type_size(struct page);
    __u64 start = vma->vm_start,
          addr = start + ((folio->index + nth - vma->vm_pgoff) << settings.page_shift);

    return addr >= start && addr < vma->vm_end ? addr : 0;
}

/* bool arguments arrive in 64 bits of which the lowest byte is defined. */
static __always_inline bool as_bool(__u64 argument) {
    return argument & 0xff;
}

static __always_inline struct space *rmap_space(struct vm_area_struct *vma) {
    struct mm_struct *mm = vma->vm_mm;
    struct space *space = space_of(as_number(mm));

    if (!space || torn_down(mm) || vma->vm_flags & VM_HUGETLB)
        return 0;
    return space;
}

static __always_inline void emit_rmap(struct space *space, __u32 member, __s64 pages, __u64 addr) {
    struct event *e;
    __u64 waiting;

    e = sample_reserve(&waiting);
    if (!e)
        return;
    fill(e, EVENT_TYPE_RMAP, space->pid, acting_tid(), bpf_ktime_get_ns());
    e->rmap.member = member;
    e->rmap.delta_pages = pages;
    e->rmap.addr = addr;
    bpf_ringbuf_submit(e, ring_submit_flags(waiting));
}

/* `folio` as a number; 0: a new one, which no migration knows yet. */
static __always_inline int rmap_change(struct space *space, __u64 folio, __u32 member, __s64 pages,
                                       __u64 addr) {
    struct rmap_sums *sums = rmap_sums_of(space);

    if (!sums)
        return 0;
    __sync_fetch_and_add(&sums->begun, 1);
    if (folio && migrations_under_way)
        pages = migration_counts(sums, member, pages, folio);
    if (pages) {
        __sync_fetch_and_add(&sums->pages[member & 3], pages);
        emit_rmap(space, member, pages, addr);
    }
    __sync_fetch_and_add(&sums->done, 1);
    return 0;
}

static __always_inline int rmap_add_new(struct vm_area_struct *vma, __s64 pages, __u64 addr) {
    struct space *space = rmap_space(vma);

    return space ? rmap_change(space, 0, EVENT_MEMBER_ANON, pages, addr) : 0;
}

static __always_inline int rmap_add_anon(__u64 folio, struct vm_area_struct *vma, __s64 pages,
                                         __u64 addr) {
    struct space *space = rmap_space(vma);

    return space ? rmap_change(space, folio, EVENT_MEMBER_ANON, pages, addr) : 0;
}

/* `page` as a number. */
static __always_inline int rmap_add_file(struct folio *folio, enum folio_source source, __u64 page,
                                         struct vm_area_struct *vma, __s64 pages) {
    struct space *space = rmap_space(vma);
    struct folio_seen seen;

    if (!space)
        return 0;
    seen = folio_see(folio, source);
    return rmap_change(space, seen.number, folio_file_member(&seen), pages,
                       page_address(&seen, page, vma));
}

static __always_inline int rmap_remove(struct folio *folio, enum folio_source source, __u64 page,
                                       struct vm_area_struct *vma, __s64 pages) {
    struct space *space = rmap_space(vma);
    struct folio_seen seen;

    if (!space)
        return 0;
    seen = folio_see(folio, source);
    return rmap_change(space, seen.number, folio_member(&seen), -pages,
                       page_address(&seen, page, vma));
}

/*
 * --- migration
 * ---------------------------------------------------------------------------------------------
 */

/* Entry and exit, each twice. `subject` and `mm` in terms of the arguments. */
#define MIGRATION_HOOKS(function, side, subject, mm, ...) \
    SEC("fentry/" #function)                              \
    int BPF_PROG(function, __VA_ARGS__) {                 \
        return migration_begins(side, subject, mm);       \
    }                                                     \
    SEC("fentry/" #function)                              \
    int BPF_PROG(function##_again, __VA_ARGS__) {         \
        return migration_begins(side, subject, mm);       \
    }                                                     \
    SEC("fexit/" #function)                               \
    int BPF_PROG(function##_exit) {                       \
        return migration_ends(side);                      \
    }                                                     \
    SEC("fexit/" #function)                               \
    int BPF_PROG(function##_exit_again) {                 \
        return migration_ends(side);                      \
    }

MIGRATION_HOOKS(try_to_migrate_one, MIGRATION_MAKES, as_number(folio), as_number(vma->vm_mm),
                struct folio *folio, struct vm_area_struct *vma)
MIGRATION_HOOKS(remove_migration_pte, MIGRATION_TAKES, as_number(folio), as_number(vma->vm_mm),
                struct folio *folio, struct vm_area_struct *vma)
MIGRATION_HOOKS(migrate_vma_collect_pmd, MIGRATION_COLLECTS, as_number(walk->mm),
                as_number(walk->mm), void *pmdp, unsigned long start, unsigned long end,
                struct mm_walk *walk)

/*
 * A counter moves while an entry is taken back: a page of zeros has become the zero page (from
 * v6.12 on), which passes no function of the reverse map.
 */
SEC("tp_btf/rss_stat")
int BPF_PROG(migration_drops, struct mm_struct *mm, int which) {
    struct migration *mark = migrations_under_way ? migration_of_current(MIGRATION_TAKES) : 0;
    __u32 member = which;
    struct rmap_sums *sums;
    struct space *space;

    if (!mark || mark->over || mark->mm != as_number(mm) || member >= EVENT_MEMBERS ||
        torn_down(mm))
        return 0;
    barrier_var(member); /* so that each use of it keeps the bound that the verifier wants to see */
    space = space_of(as_number(mm));
    sums = space ? rmap_sums_of(space) : 0;
    if (!sums || !drop_counts(mark, sums, member))
        return 0;
    return rmap_change(space, 0, member, -1, 0);
}

/*
 * --- v6.8 and later
 * ----------------------------------------------------------------------------------------
 */

/* From v6.3 on; a new folio is mapped whole. */
SEC("fentry/folio_add_new_anon_rmap")
int BPF_PROG(folio_add_new_anon_rmap, struct folio *folio, struct vm_area_struct *vma,
             unsigned long addr) {
    struct space *space = rmap_space(vma);

    return space ? rmap_change(space, 0, EVENT_MEMBER_ANON, folio_pages(folio), addr) : 0;
}

SEC("fentry/folio_add_anon_rmap_ptes")
int BPF_PROG(folio_add_anon_rmap_ptes, struct folio *folio, struct page *page, int nr_pages,
             struct vm_area_struct *vma, unsigned long addr) {
    return rmap_add_anon(as_number(folio), vma, nr_pages, addr);
}

SEC("fentry/folio_add_anon_rmap_pmd")
int BPF_PROG(folio_add_anon_rmap_pmd, struct folio *folio, struct page *page,
             struct vm_area_struct *vma, unsigned long addr) {
    return rmap_add_anon(as_number(folio), vma, pmd_pages(), addr);
}

SEC("fentry/folio_add_file_rmap_ptes")
int BPF_PROG(folio_add_file_rmap_ptes, struct folio *folio, struct page *page, int nr_pages,
             struct vm_area_struct *vma) {
    return rmap_add_file(folio, FOLIO_ARGUMENT, as_number(page), vma, nr_pages);
}

SEC("fentry/folio_add_file_rmap_pmd")
int BPF_PROG(folio_add_file_rmap_pmd, struct folio *folio, struct page *page,
             struct vm_area_struct *vma) {
    return rmap_add_file(folio, FOLIO_ARGUMENT, as_number(page), vma, pmd_pages());
}

SEC("fentry/folio_add_file_rmap_pud")
int BPF_PROG(folio_add_file_rmap_pud, struct folio *folio, struct page *page,
             struct vm_area_struct *vma) {
    return rmap_add_file(folio, FOLIO_ARGUMENT, as_number(page), vma, pud_pages());
}

SEC("fentry/folio_remove_rmap_ptes")
int BPF_PROG(folio_remove_rmap_ptes, struct folio *folio, struct page *page, int nr_pages,
             struct vm_area_struct *vma) {
    return rmap_remove(folio, FOLIO_ARGUMENT, as_number(page), vma, nr_pages);
}

SEC("fentry/folio_remove_rmap_pmd")
int BPF_PROG(folio_remove_rmap_pmd, struct folio *folio, struct page *page,
             struct vm_area_struct *vma) {
    return rmap_remove(folio, FOLIO_ARGUMENT, as_number(page), vma, pmd_pages());
}

SEC("fentry/folio_remove_rmap_pud")
int BPF_PROG(folio_remove_rmap_pud, struct folio *folio, struct page *page,
             struct vm_area_struct *vma) {
    return rmap_remove(folio, FOLIO_ARGUMENT, as_number(page), vma, pud_pages());
}

/*
 * --- v5.18 to v6.7
 * -----------------------------------------------------------------------------------------
 */

/* v6.2 and before, where a new anonymous page is small or as large as a PMD maps. */
SEC("fentry/page_add_new_anon_rmap")
int BPF_PROG(page_add_new_anon_rmap, struct page *page, struct vm_area_struct *vma,
             unsigned long addr) {
    bool huge = BPF_CORE_READ(page, flags) & (1UL << bpf_core_enum_value(enum pageflags, PG_head));

    return rmap_add_new(vma, huge ? pmd_pages() : 1, addr);
}

/* include/linux/rmap.h: the page is mapped by a PMD entry. */
#define RMAP_COMPOUND 0x2

SEC("fentry/page_add_anon_rmap")
int BPF_PROG(page_add_anon_rmap, struct page *page, struct vm_area_struct *vma, unsigned long addr,
             int flags) {
    struct folio *folio = page_folio((void *)as_number(page));

    return rmap_add_anon((__u64)folio, vma, flags & RMAP_COMPOUND ? pmd_pages() : 1, addr);
}

/*
 * On v6.6 and v6.7 page_add_file_rmap does its work through folio_add_file_rmap_range, by a call or
 * by a copy that the compiler made of it, and others call the latter themselves. So both are
 * hooked, and while a task is inside the former with a page, its entry into the latter with that
 * page is not counted again. That entry takes the mark away: one that is left behind, since the
 * kernel skipped the program on the exit, hides one change at most.
 */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    /* tasks that are inside at once: one per CPU, more only where they can be preempted */
    __uint(max_entries, 4096);
    __type(key, __u64);
    __type(value, __u64); /* the page */
} inside_page_add_file_rmap SEC(".maps");

SEC("fentry/page_add_file_rmap")
int BPF_PROG(page_add_file_rmap, struct page *page, struct vm_area_struct *vma, __u64 compound) {
    __u64 task = bpf_get_current_task(), number = as_number(page);
    struct page *mapped = (void *)number;
    struct folio *folio = page_folio(mapped);

    if (settings.file_rmap_nests &&
        bpf_map_update_elem(&inside_page_add_file_rmap, &task, &number, BPF_ANY))
        TALLY(lost_ring, 1);
    return rmap_add_file(folio, FOLIO_COMPUTED, (__u64)mapped, vma,
                         as_bool(compound) ? pmd_pages() : 1);
}

SEC("fexit/page_add_file_rmap")
int BPF_PROG(page_add_file_rmap_exit) {
    __u64 task = bpf_get_current_task();

    bpf_map_delete_elem(&inside_page_add_file_rmap, &task);
    return 0;
}

SEC("fentry/folio_add_file_rmap_range")
int BPF_PROG(folio_add_file_rmap_range, struct folio *folio, struct page *page,
             unsigned int nr_pages, struct vm_area_struct *vma, __u64 compound) {
    __u64 task = bpf_get_current_task(),
          *inside = bpf_map_lookup_elem(&inside_page_add_file_rmap, &task);

    if (inside && *inside == as_number(page)) {
        bpf_map_delete_elem(&inside_page_add_file_rmap, &task);
        return 0;
    }
    return rmap_add_file(folio, FOLIO_ARGUMENT, as_number(page), vma,
                         as_bool(compound) ? pmd_pages() : nr_pages);
}

SEC("fentry/page_remove_rmap")
int BPF_PROG(page_remove_rmap, struct page *page, struct vm_area_struct *vma, __u64 compound) {
    struct page *mapped = (void *)as_number(page);
    struct folio *folio = page_folio(mapped);

    return rmap_remove(folio, FOLIO_COMPUTED, (__u64)mapped, vma,
                       as_bool(compound) ? pmd_pages() : 1);
}

#endif
