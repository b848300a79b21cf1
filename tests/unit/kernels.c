// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * What the kernel of version KERNEL declares, as far as memtrack asks, to be compiled into BTF of
 * the shape that the kernel's own has. It stands in for kernels that no archive has any more.
 * Parameters are named and ordered as in the kernel's sources; the blocks are its changes.
 * RENAMED_REMOVE and UNKNOWN_ADD make kernels that do not exist, NO_MIGRATION and
 * NO_DEVICE_MIGRATION ones without these options, PREEMPT_RT one with it.
 */
#define VERSION(major, minor) ((major)*100 + (minor))

struct folio;
struct linux_binprm;
struct mm_walk;
struct page;
struct task_struct;
struct vm_area_struct;

typedef _Bool bool;
typedef int pid_t;
typedef unsigned long pmd_t;
typedef int rmap_t;
typedef int s32;
typedef long s64;
typedef unsigned long u64;

/* --- locks --- */

struct raw_spinlock {
    int raw_lock;
};

struct rt_mutex_base {
    struct raw_spinlock wait_lock;
};

struct spinlock {
#ifdef PREEMPT_RT
    struct rt_mutex_base lock;
#else
    union {
        struct raw_spinlock rlock;
    };
#endif
};

/* --- the counters --- */

#define NR_MM_COUNTERS 4

struct percpu_counter {
    unsigned lock;
    s64 count;
    s32 *counters;
};

struct mm_rss_stat {
    struct {
        s64 counter;
    } count[NR_MM_COUNTERS];
};

/*
 * All members but the last are inside an anonymous struct, for the sake of structure layout
 * randomisation.
 */
struct mm_struct {
    struct {
        unsigned long total_vm;
        struct spinlock page_table_lock;
#if KERNEL >= VERSION(6, 2)
        struct percpu_counter rss_stat[NR_MM_COUNTERS];
#else
        struct mm_rss_stat rss_stat;
#endif
    };
    unsigned long cpu_bitmap[];
};

struct trace_event_raw_rss_stat {
    unsigned int mm_id;
    unsigned int curr;
    int member;
    long size;
};

/* --- tracepoints --- */

#if KERNEL >= VERSION(6, 2)
typedef void (*btf_trace_rss_stat)(void *, struct mm_struct *, int);
#else
typedef void (*btf_trace_rss_stat)(void *, struct mm_struct *, int, long);
#endif

#if KERNEL >= VERSION(6, 18)
typedef void (*btf_trace_task_newtask)(void *, struct task_struct *, u64);
#else
typedef void (*btf_trace_task_newtask)(void *, struct task_struct *, unsigned long);
#endif

typedef void (*btf_trace_sched_process_exec)(void *, struct task_struct *, pid_t,
                                             struct linux_binprm *);

#if KERNEL >= VERSION(6, 16)
typedef void (*btf_trace_sched_process_exit)(void *, struct task_struct *, bool);
#else
typedef void (*btf_trace_sched_process_exit)(void *, struct task_struct *);
#endif

typedef void (*btf_trace_sched_wakeup_new)(void *, struct task_struct *);

#if KERNEL >= VERSION(6, 10)
typedef void (*btf_trace_sched_prepare_exec)(void *, struct task_struct *, struct linux_binprm *);

void use_prepare(btf_trace_sched_prepare_exec prepare) {
}
#endif

/* kernel/tracepoint.c */
struct tp_transition_snapshot {
    unsigned long rcu;
#if KERNEL >= VERSION(7, 0)
    unsigned long srcu_gp;
#endif
    _Bool ongoing;
};

/* A type that nothing uses does not get into BTF. */
void use_types(struct mm_struct *mm, struct percpu_counter *counter,
               struct trace_event_raw_rss_stat *record, btf_trace_rss_stat rss_stat,
               btf_trace_task_newtask task_newtask, btf_trace_sched_process_exec exec,
               btf_trace_sched_process_exit exit, btf_trace_sched_wakeup_new wakeup,
               struct tp_transition_snapshot *snapshot) {
}

struct bpf_iter_meta;

int bpf_iter_task(struct bpf_iter_meta *meta, struct task_struct *task) {
    return 0;
}

/* --- hugetlb's own, which must never be taken for the others --- */

#if KERNEL >= VERSION(6, 8)
void hugetlb_add_anon_rmap(struct folio *folio, struct vm_area_struct *vma, unsigned long address,
                           rmap_t flags) {
}
#endif

/* --- adding a new anonymous page --- */

#if KERNEL >= VERSION(6, 11)
void folio_add_new_anon_rmap(struct folio *folio, struct vm_area_struct *vma, unsigned long address,
                             rmap_t flags) {
}
#elif KERNEL >= VERSION(6, 3)
void folio_add_new_anon_rmap(struct folio *folio, struct vm_area_struct *vma,
                             unsigned long address) {
}
#endif

#if KERNEL < VERSION(5, 19)
void page_add_new_anon_rmap(struct page *page, struct vm_area_struct *vma, unsigned long address,
                            bool compound) {
}
#elif KERNEL < VERSION(6, 8)
void page_add_new_anon_rmap(struct page *page, struct vm_area_struct *vma, unsigned long address) {
}
#endif

/* --- adding an anonymous page --- */

#if KERNEL < VERSION(5, 19)
void page_add_anon_rmap(struct page *page, struct vm_area_struct *vma, unsigned long address,
                        bool compound) {
}

void do_page_add_anon_rmap(struct page *page, struct vm_area_struct *vma, unsigned long address,
                           int flags) {
}
#elif KERNEL < VERSION(6, 8)
void page_add_anon_rmap(struct page *page, struct vm_area_struct *vma, unsigned long address,
                        rmap_t flags) {
}
#else
void folio_add_anon_rmap_ptes(struct folio *folio, struct page *page, int nr_pages,
                              struct vm_area_struct *vma, unsigned long address, rmap_t flags) {
}

void folio_add_anon_rmap_pmd(struct folio *folio, struct page *page, struct vm_area_struct *vma,
                             unsigned long address, rmap_t flags) {
}
#endif

#ifdef UNKNOWN_ADD
void folio_add_anon_rmap_pud(struct folio *folio, struct page *page, struct vm_area_struct *vma,
                             unsigned long address, rmap_t flags) {
}
#endif

/* Moves no page in or out of an address space. */
void folio_move_anon_rmap(struct folio *folio, struct vm_area_struct *vma) {
}

/* --- adding a page of a file --- */

#if KERNEL < VERSION(5, 18)
void page_add_file_rmap(struct page *page, bool compound) {
}
#elif KERNEL < VERSION(6, 8)
void page_add_file_rmap(struct page *page, struct vm_area_struct *vma, bool compound) {
}
#else
void folio_add_file_rmap_ptes(struct folio *folio, struct page *page, int nr_pages,
                              struct vm_area_struct *vma) {
}

void folio_add_file_rmap_pmd(struct folio *folio, struct page *page, struct vm_area_struct *vma) {
}
#endif

#if KERNEL >= VERSION(6, 6) && KERNEL < VERSION(6, 8)
void folio_add_file_rmap_range(struct folio *folio, struct page *page, unsigned int nr_pages,
                               struct vm_area_struct *vma, bool compound) {
}
#endif

#if KERNEL >= VERSION(6, 15)
void folio_add_file_rmap_pud(struct folio *folio, struct page *page, struct vm_area_struct *vma) {
}
#endif

/* --- removing --- */

#ifdef RENAMED_REMOVE
void folio_drop_rmap_ptes(struct folio *folio, struct page *page, int nr_pages,
                          struct vm_area_struct *vma) {
}

void folio_drop_rmap_pmd(struct folio *folio, struct page *page, struct vm_area_struct *vma) {
}
#elif KERNEL < VERSION(5, 18)
void page_remove_rmap(struct page *page, bool compound) {
}
#elif KERNEL < VERSION(6, 8)
void page_remove_rmap(struct page *page, struct vm_area_struct *vma, bool compound) {
}
#else
void folio_remove_rmap_ptes(struct folio *folio, struct page *page, int nr_pages,
                            struct vm_area_struct *vma) {
}

void folio_remove_rmap_pmd(struct folio *folio, struct page *page, struct vm_area_struct *vma) {
}
#endif

#if KERNEL >= VERSION(6, 15) && !defined(RENAMED_REMOVE)
void folio_remove_rmap_pud(struct folio *folio, struct page *page, struct vm_area_struct *vma) {
}
#endif

/* --- migration, static but for the last --- */

#ifndef NO_MIGRATION
#if KERNEL < VERSION(5, 18)
bool try_to_migrate_one(struct page *page, struct vm_area_struct *vma, unsigned long address,
                        void *arg) {
    return 1;
}

bool remove_migration_pte(struct page *page, struct vm_area_struct *vma, unsigned long addr,
                          void *old) {
    return 1;
}
#else
bool try_to_migrate_one(struct folio *folio, struct vm_area_struct *vma, unsigned long address,
                        void *arg) {
    return 1;
}

bool remove_migration_pte(struct folio *folio, struct vm_area_struct *vma, unsigned long addr,
                          void *arg) {
    return 1;
}
#endif

#ifndef NO_DEVICE_MIGRATION
int migrate_vma_collect_pmd(pmd_t *pmdp, unsigned long start, unsigned long end,
                            struct mm_walk *walk) {
    return 0;
}
#endif

int migrate_pages(void) {
    return 0;
}
#endif
