/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The kernel types that the programs read, trimmed by hand to the fields used. Offsets and presence
 * come from the running kernel's BTF through CO-RE; the layout here is that of the newest kernel. A
 * layout that a kernel change replaced is a flavour (TYPE___BOUNDARY): libbpf ignores what follows
 * the three underscores.
 */
#ifndef MEMTRACK_VMLINUX_H
#define MEMTRACK_VMLINUX_H

typedef signed char __s8;
typedef unsigned char __u8;
typedef short __s16;
typedef unsigned short __u16;
typedef int __s32;
typedef unsigned int __u32;
typedef long long __s64;
typedef unsigned long long __u64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;
typedef _Bool bool;
typedef int pid_t;

enum {
    false = 0,
    true = 1,
};

typedef __u8 uint8_t;
typedef __s32 int32_t;
typedef __u32 uint32_t;
typedef __s64 int64_t;
typedef __u64 uint64_t;

/* UAPI constants of bpf(2) that the programs use; numbers are ABI. */
enum bpf_map_type {
    BPF_MAP_TYPE_HASH = 1,
    BPF_MAP_TYPE_ARRAY = 2,
    BPF_MAP_TYPE_PERCPU_ARRAY = 6,
    BPF_MAP_TYPE_RINGBUF = 27,
};

enum {
    BPF_ANY = 0,
    BPF_NOEXIST = 1,
};

enum {
    BPF_RB_NO_WAKEUP = 1,
    BPF_RB_FORCE_WAKEUP = 2,
};

enum {
    BPF_RB_AVAIL_DATA = 0,
};

struct bpf_spin_lock {
    __u32 val;
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
    int counter;
} atomic_t;

typedef struct {
    __s64 counter;
} atomic64_t;

typedef struct refcount_struct {
    atomic_t refs;
} refcount_t;

struct kref {
    refcount_t refcount;
};

/*
 * --- processes
 * ---------------------------------------------------------------------------------------------
 */

struct ns_common {
    unsigned int inum;
};

struct pid_namespace {
    struct ns_common ns;
};

struct upid {
    int nr;
    struct pid_namespace *ns;
};

struct pid {
    unsigned int level;
    struct upid numbers[0];
};

enum pid_type {
    PIDTYPE_PID,
    PIDTYPE_TGID,
    PIDTYPE_MAX = 4,
};

struct signal_struct {
    atomic_t live;
    int group_exit_code;
    unsigned int flags;
    struct pid *pids[PIDTYPE_MAX];
};

/* What a task brought into the kernel. */
struct pt_regs___x86_64_entry {
    unsigned long orig_ax;
};

struct pt_regs___arm64_entry {
    int syscallno;
};

struct task_struct {
    unsigned int flags;
    struct mm_struct *mm;
    int exit_code;
    pid_t pid;
    pid_t tgid;
    struct task_struct *real_parent;
    struct task_struct *group_leader;
    struct pid *thread_pid;
    __u64 start_time;
    __u64 self_exec_id;
    unsigned in_execve : 1;
    char comm[16];
    struct signal_struct *signal;
};

/*
 * --- the counters of an address space
 * ----------------------------------------------------------------------
 */

struct qspinlock {
    atomic_t val;
};

typedef struct qspinlock arch_spinlock_t;

struct raw_spinlock {
    arch_spinlock_t raw_lock;
};

struct percpu_counter {
    struct raw_spinlock lock;
    __s64 count;
    __s32 *counters;
};

struct rw_semaphore {
    atomic64_t count;
};

struct mm_struct {
    atomic_t mm_users;
    struct rw_semaphore mmap_lock;
    struct percpu_counter rss_stat[4];
};

/*
 * Since Linux kernel commit f1a7941243c1 ("mm: convert mm's rss stats into percpu_counter", in
 * v6.2) the counters are percpu_counters. Before, they were atomics, and each thread kept up to 64
 * updates of its own mm to itself.
 */
struct mm_rss_stat___pre_v6_2 {
    atomic64_t count[4];
};

struct mm_struct___pre_v6_2 {
    struct mm_rss_stat___pre_v6_2 rss_stat;
};

struct task_rss_stat___pre_v6_2 {
    int count[4];
};

struct task_struct___pre_v6_2 {
    struct task_rss_stat___pre_v6_2 rss_stat;
};

/* The classic tracepoint's record; the same from v5.10 to v7.3. */
struct trace_event_raw_rss_stat {
    unsigned int mm_id;
    unsigned int curr;
    int member;
    long size;
};

/*
 * --- pages and folios
 * --------------------------------------------------------------------------------------
 */

struct address_space;

struct file {
    struct address_space *f_mapping;
};

struct vm_area_struct {
    unsigned long vm_start;
    unsigned long vm_end;
    struct mm_struct *vm_mm;
    unsigned long vm_flags;
    unsigned long vm_pgoff;
    struct file *vm_file;
};

/* A walk over page tables. */
struct mm_walk {
    struct mm_struct *mm;
};

struct page {
    unsigned long flags;
    unsigned long compound_head;
    struct address_space *mapping;
    unsigned long index;
};

/*
 * Since Linux kernel commit 53fbef56e07d ("mm: introduce memdesc_flags_t", in v6.18) the flags are
 * a struct.
 */
typedef struct {
    unsigned long f;
} memdesc_flags_t;

struct folio {
    memdesc_flags_t flags;
    struct address_space *mapping;
    unsigned long index;
    unsigned long _flags_1;
};

struct folio___pre_v6_18 {
    unsigned long flags;
};

/*
 * Since Linux kernel commit ebc1baf5c9b4 ("mm: free up a word in the first tail page", in v6.6) the
 * order is the lowest byte of _flags_1.
 */
struct folio___pre_v6_6 {
    unsigned char _folio_order;
};

enum pageflags {
    PG_head = 6,
    PG_swapbacked = 17,
};

/*
 * --- BPF's own
 * ---------------------------------------------------------------------------------------------
 */

struct bpf_map {
    __u32 id;
};

struct bpf_array {
    struct bpf_map map;
    void *pptrs[0];
};

struct seq_file;

struct bpf_iter_meta {
    struct seq_file *seq;
};

struct bpf_iter__task {
    struct bpf_iter_meta *meta;
    struct task_struct *task;
};

#pragma clang attribute pop

#endif
