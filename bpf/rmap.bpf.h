/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The reverse map, one signed delta per change. Every page that a page table maps enters and leaves through these
 * functions, so the sum of the deltas is the resident set, whatever order they arrive in. One program per kernel
 * function; which of them are loaded is decided per family in python/memtrack/hooks.py.
 */
#ifndef MEMTRACK_RMAP_BPF_H
#define MEMTRACK_RMAP_BPF_H

#define PAGE_MAPPING_ANON 1UL /* include/linux/page-flags.h (FOLIO_MAPPING_ANON from v6.16 on) */

/* include/linux/mm.h. These pages are not in the kernel's counters and must not enter here either. */
#define VM_HUGETLB 0x00400000

/* What a PMD entry maps when it maps a page: as many pages as a page table of 8-byte entries holds. */
static __always_inline __s64 pmd_pages(void)
{
    return (1LL << settings.page_shift) / sizeof(__u64);
}

static __always_inline __s64 pud_pages(void)
{
    return pmd_pages() * pmd_pages();
}

static __always_inline unsigned long folio_flags(struct folio *folio)
{
    struct folio___pre_v6_18 *old = (void *)folio;

    if (bpf_core_field_exists(folio->flags.f))
        return BPF_CORE_READ(folio, flags.f);
    return BPF_CORE_READ(old, flags);
}

static __always_inline bool folio_has_flag(struct folio *folio, __u64 bit)
{
    return folio_flags(folio) & (1UL << bit);
}

static __always_inline __s64 folio_pages(struct folio *folio)
{
    struct folio___pre_v6_6 *old = (void *)folio;
    __u8 order;

    if (!folio_has_flag(folio, bpf_core_enum_value(enum pageflags, PG_head)))
        return 1;
    if (bpf_core_field_exists(old->_folio_order))
        order = BPF_CORE_READ(old, _folio_order);
    else
        order = BPF_CORE_READ(folio, _flags_1);
    return 1LL << (order & 31);
}

/* As the kernel's mm_counter(): the anon bit first, then swap backing means shmem. */
static __always_inline __u32 folio_file_member(struct folio *folio)
{
    return folio_has_flag(folio, bpf_core_enum_value(enum pageflags, PG_swapbacked)) ? EVENT_MEMBER_SHMEM
                                                                                     : EVENT_MEMBER_FILE;
}

static __always_inline __u32 folio_member(struct folio *folio)
{
    unsigned long mapping = (unsigned long)BPF_CORE_READ(folio, mapping);

    return mapping & PAGE_MAPPING_ANON ? EVENT_MEMBER_ANON : folio_file_member(folio);
}

/*
 * The folio that a page of the older functions belongs to. The page comes as a number (as_number), because the verifier
 * lets us subtract a number only from another.
 */
static __always_inline struct folio *page_folio(struct page *page)
{
    unsigned long head = BPF_CORE_READ(page, compound_head);

    return (void *)(head & 1 ? head - 1 : (unsigned long)page);
}

/*
 * Where a page is mapped, from its place in its folio and the folio's in the mapping: what linear_page_index() does,
 * the other way round. 0 where that is not so: a KSM page's index is no offset.
 */
static __always_inline __u64 page_address(struct folio *folio, struct page *page, struct vm_area_struct *vma)
{
    unsigned long nth = ((unsigned long)page - (unsigned long)folio) / bpf_core_type_size(struct page);
    unsigned long index = BPF_CORE_READ(folio, index) + nth;
    __u64 start = vma->vm_start, addr = start + ((index - vma->vm_pgoff) << settings.page_shift);

    return addr >= start && addr < vma->vm_end ? addr : 0;
}

/* bool arguments arrive in 64 bits of which the lowest byte is defined. */
static __always_inline bool as_bool(__u64 argument)
{
    return argument & 0xff;
}

static __always_inline struct space *rmap_space(struct vm_area_struct *vma)
{
    struct mm_struct *mm = vma->vm_mm;
    struct space *space = space_of(as_number(mm));

    if (!space || torn_down(mm) || vma->vm_flags & VM_HUGETLB)
        return 0;
    return space;
}

static __always_inline int emit_rmap(struct space *space, __u32 member, __s64 pages, __u64 addr)
{
    struct event *e;
    __u64 waiting;

    e = sample_reserve(&waiting);
    if (!e)
        return 0;
    fill(e, EVENT_TYPE_RMAP, space->pid, acting_tid(), bpf_ktime_get_ns());
    e->rmap.member = member;
    e->rmap.delta_pages = pages;
    e->rmap.addr = addr;
    bpf_ringbuf_submit(e, ring_submit_flags(waiting));
    return 0;
}

static __always_inline int rmap_add_anon(struct vm_area_struct *vma, __s64 pages, __u64 addr)
{
    struct space *space = rmap_space(vma);

    return space ? emit_rmap(space, EVENT_MEMBER_ANON, pages, addr) : 0;
}

static __always_inline int rmap_add_file(struct folio *folio, struct page *page, struct vm_area_struct *vma,
                                         __s64 pages)
{
    struct space *space = rmap_space(vma);

    return space ? emit_rmap(space, folio_file_member(folio), pages, page_address(folio, page, vma)) : 0;
}

static __always_inline int rmap_remove(struct folio *folio, struct page *page, struct vm_area_struct *vma, __s64 pages)
{
    struct space *space = rmap_space(vma);

    return space ? emit_rmap(space, folio_member(folio), -pages, page_address(folio, page, vma)) : 0;
}

/* --- v6.8 and later ---------------------------------------------------------------------------------------- */

/* From v6.3 on; a new folio is mapped whole. */
SEC("fentry/folio_add_new_anon_rmap")
int BPF_PROG(folio_add_new_anon_rmap, struct folio *folio, struct vm_area_struct *vma, unsigned long addr)
{
    return rmap_add_anon(vma, folio_pages(folio), addr);
}

SEC("fentry/folio_add_anon_rmap_ptes")
int BPF_PROG(folio_add_anon_rmap_ptes, struct folio *folio, struct page *page, int nr_pages, struct vm_area_struct *vma,
             unsigned long addr)
{
    return rmap_add_anon(vma, nr_pages, addr);
}

SEC("fentry/folio_add_anon_rmap_pmd")
int BPF_PROG(folio_add_anon_rmap_pmd, struct folio *folio, struct page *page, struct vm_area_struct *vma,
             unsigned long addr)
{
    return rmap_add_anon(vma, pmd_pages(), addr);
}

SEC("fentry/folio_add_file_rmap_ptes")
int BPF_PROG(folio_add_file_rmap_ptes, struct folio *folio, struct page *page, int nr_pages, struct vm_area_struct *vma)
{
    return rmap_add_file(folio, page, vma, nr_pages);
}

SEC("fentry/folio_add_file_rmap_pmd")
int BPF_PROG(folio_add_file_rmap_pmd, struct folio *folio, struct page *page, struct vm_area_struct *vma)
{
    return rmap_add_file(folio, page, vma, pmd_pages());
}

SEC("fentry/folio_add_file_rmap_pud")
int BPF_PROG(folio_add_file_rmap_pud, struct folio *folio, struct page *page, struct vm_area_struct *vma)
{
    return rmap_add_file(folio, page, vma, pud_pages());
}

SEC("fentry/folio_remove_rmap_ptes")
int BPF_PROG(folio_remove_rmap_ptes, struct folio *folio, struct page *page, int nr_pages, struct vm_area_struct *vma)
{
    return rmap_remove(folio, page, vma, nr_pages);
}

SEC("fentry/folio_remove_rmap_pmd")
int BPF_PROG(folio_remove_rmap_pmd, struct folio *folio, struct page *page, struct vm_area_struct *vma)
{
    return rmap_remove(folio, page, vma, pmd_pages());
}

SEC("fentry/folio_remove_rmap_pud")
int BPF_PROG(folio_remove_rmap_pud, struct folio *folio, struct page *page, struct vm_area_struct *vma)
{
    return rmap_remove(folio, page, vma, pud_pages());
}

/* --- v5.18 to v6.7 ----------------------------------------------------------------------------------------- */

/* v6.2 and before, where a new anonymous page is small or as large as a PMD maps. */
SEC("fentry/page_add_new_anon_rmap")
int BPF_PROG(page_add_new_anon_rmap, struct page *page, struct vm_area_struct *vma, unsigned long addr)
{
    bool huge = BPF_CORE_READ(page, flags) & (1UL << bpf_core_enum_value(enum pageflags, PG_head));

    return rmap_add_anon(vma, huge ? pmd_pages() : 1, addr);
}

/* include/linux/rmap.h: the page is mapped by a PMD entry. */
#define RMAP_COMPOUND 0x2

SEC("fentry/page_add_anon_rmap")
int BPF_PROG(page_add_anon_rmap, struct page *page, struct vm_area_struct *vma, unsigned long addr, int flags)
{
    return rmap_add_anon(vma, flags & RMAP_COMPOUND ? pmd_pages() : 1, addr);
}

/*
 * On v6.6 and v6.7 page_add_file_rmap does its work through folio_add_file_rmap_range, by a call or by a copy that the
 * compiler made of it, and others call the latter themselves. So both are hooked, and while a task is inside the
 * former, its entry into the latter is not counted again.
 */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 4096); /* tasks that are inside at once: one per CPU, more only where they can be preempted */
    __type(key, __u64);
    __type(value, __u8);
} inside_page_add_file_rmap SEC(".maps");

SEC("fentry/page_add_file_rmap")
int BPF_PROG(page_add_file_rmap, struct page *page, struct vm_area_struct *vma, __u64 compound)
{
    struct page *mapped = (void *)as_number(page);
    __u64 task = bpf_get_current_task();
    __u8 one = 1;

    if (settings.file_rmap_nests && bpf_map_update_elem(&inside_page_add_file_rmap, &task, &one, BPF_ANY))
        TALLY(lost_ring, 1);
    return rmap_add_file(page_folio(mapped), mapped, vma, as_bool(compound) ? pmd_pages() : 1);
}

SEC("fexit/page_add_file_rmap")
int BPF_PROG(page_add_file_rmap_exit)
{
    __u64 task = bpf_get_current_task();

    bpf_map_delete_elem(&inside_page_add_file_rmap, &task);
    return 0;
}

SEC("fentry/folio_add_file_rmap_range")
int BPF_PROG(folio_add_file_rmap_range, struct folio *folio, struct page *page, unsigned int nr_pages,
             struct vm_area_struct *vma, __u64 compound)
{
    __u64 task = bpf_get_current_task();

    if (bpf_map_lookup_elem(&inside_page_add_file_rmap, &task))
        return 0;
    return rmap_add_file(folio, page, vma, as_bool(compound) ? pmd_pages() : nr_pages);
}

SEC("fentry/page_remove_rmap")
int BPF_PROG(page_remove_rmap, struct page *page, struct vm_area_struct *vma, __u64 compound)
{
    struct page *mapped = (void *)as_number(page);

    return rmap_remove(page_folio(mapped), mapped, vma, as_bool(compound) ? pmd_pages() : 1);
}

#endif
