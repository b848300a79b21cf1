/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Exact sums of an address space's counters, whatever shape the kernel keeps them in. */
#ifndef MEMTRACK_COUNTERS_BPF_H
#define MEMTRACK_COUNTERS_BPF_H

/*
 * A power of two: 32 KiB of offsets. A machine with more possible CPUs gets its sums from the
 * classic tracepoint.
 */
#define CPUS_MAX 4096

/*
 * What to add to a per-CPU pointer to reach the CPU's part; learn_cpu_offsets fills it in before
 * any hook attaches.
 */
__u64 cpu_offset[CPUS_MAX];

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64);
} cpu_probe SEC(".maps");

struct offsets_walk {
    __u64 base;
    long missing;
};

static long learn_offset(__u32 cpu, struct offsets_walk *walk) {
    __u32 zero = 0;
    void *part = bpf_map_lookup_percpu_elem(&cpu_probe, &zero, cpu);

    if (part)
        cpu_offset[cpu & (CPUS_MAX - 1)] = as_number(part) - walk->base;
    else
        walk->missing++;
    return 0;
}

/*
 * The kernel's table of per-CPU offsets is not in BTF, but a per-CPU map gives both ends of the
 * subtraction: the per-CPU pointer inside the map, and where a CPU's part of it is.
 */
SEC("syscall")
int learn_cpu_offsets(void *ctx) {
    __u64 map = as_number(&cpu_probe);
    struct offsets_walk walk = {};

    bpf_probe_read_kernel(&walk.base, sizeof(walk.base),
                          (void *)(map + bpf_core_field_offset(struct bpf_array, pptrs)));
    bpf_loop(settings.cpus, learn_offset, &walk, 0);
    return walk.missing;
}

struct counter_view {
    __s64 count;
    __u64 parts;
    __u32 locked;
};

/*
 * Plain loads, for a pointer that the verifier knows to be an mm_struct. Its indexes must be
 * constants.
 */
static __always_inline void view_known(struct mm_struct *mm, __u32 member, struct counter_view *v) {
#define VIEW(i)                                                       \
    do {                                                              \
        if (bpf_core_field_exists(mm->rss_stat[i].lock.raw_lock.val)) \
            v->locked = mm->rss_stat[i].lock.raw_lock.val.counter;    \
        v->count = mm->rss_stat[i].count;                             \
        v->parts = (__u64)mm->rss_stat[i].counters;                   \
    } while (0)

    switch (member) {
        case EVENT_MEMBER_FILE:
            VIEW(0);
            break;
        case EVENT_MEMBER_ANON:
            VIEW(1);
            break;
        case EVENT_MEMBER_SWAP:
            VIEW(2);
            break;
        default:
            VIEW(3);
            break;
    }
#undef VIEW
}

/* The same for an address out of a map, through the probing helper. */
static __always_inline void view_address(__u64 mm, __u32 member, struct counter_view *v) {
    struct percpu_counter *counter =
        (void *)(mm + bpf_core_field_offset(struct mm_struct, rss_stat) +
                 (member & 3) * bpf_core_type_size(struct percpu_counter));

    if (bpf_core_field_exists(counter->lock.raw_lock.val))
        bpf_core_read(&v->locked, sizeof(v->locked), &counter->lock.raw_lock.val.counter);
    bpf_core_read(&v->count, sizeof(v->count), &counter->count);
    bpf_core_read(&v->parts, sizeof(v->parts), &counter->counters);
}

/*
 * Folding a CPU's part into the total is two stores under the counter's lock: a reader between them
 * counts the batch twice. So a sum is taken again when the lock was held or the total moved
 * meanwhile.
 */
#define SUM_ATTEMPTS 4

/*
 * v6.2 and later; the verifier turns the call into nothing, and the loads from the result into ones
 * that may fault.
 */
extern void *bpf_rdonly_cast(const void *address, __u32 btf_id) __ksym __weak;

/*
 * One CPU's part: a load and no call, which is half of what a record costs. The verifier lets us
 * load from kernel structs only, so the part is read as the one number of a struct that has nothing
 * else.
 */
static __always_inline __s32 part_at(__u64 address) {
    struct kref *part = bpf_rdonly_cast((void *)address, bpf_core_type_id_kernel(struct kref));

    return part->refcount.refs.counter;
}

/*
 * The verifier walks a loop turn by turn, so a long one is cut into calls of a function that it
 * walks once.
 */
#define FEW_CPUS 16
#define CHUNK_CPUS 64

static __always_inline __s64 sum_of_some(__u64 parts, __u32 first, __u32 most, __u32 cpus) {
    __s64 sum = 0;

    for (__u32 i = 0; i < most && first + i < cpus; i++)
        sum += part_at(parts + cpu_offset[(first + i) & (CPUS_MAX - 1)]);
    return sum;
}

__noinline __s64 sum_of_chunk(__u64 parts, __u32 first) {
    /* A function that is not static is verified even where nobody calls it. */
    return settings.counters_are_percpu ? sum_of_some(parts, first, CHUNK_CPUS, settings.cpus) : 0;
}

static __always_inline __s64 sum_of_parts(__u64 parts) {
    __s64 sum = 0;

    if (settings.cpus <= FEW_CPUS)
        return sum_of_some(parts, 0, FEW_CPUS, settings.cpus);
    parts = pointer_read_back((void *)parts); /* on some kernels the verifier has it as a pointer */
    for (__u32 first = 0; first < CPUS_MAX && first < settings.cpus; first += CHUNK_CPUS)
        sum += sum_of_chunk(parts, first);
    return sum;
}

static __always_inline __s64 settled_sum(struct mm_struct *known, __u64 address, __u32 member) {
    struct counter_view before = {}, after = {};
    __s64 sum = 0;

    for (int attempt = 0; attempt < SUM_ATTEMPTS; attempt++) {
        if (known)
            view_known(known, member, &before);
        else
            view_address(address, member, &before);
        sum = before.count + sum_of_parts(before.parts);
        if (known)
            view_known(known, member, &after);
        else
            view_address(address, member, &after);
        if (!before.locked && !after.locked && before.count == after.count)
            return sum;
    }
    TALLY(sums_unsettled, 1);
    return sum;
}

/*
 * The next three fit one shape of the counters each. They stay functions of their own, because the
 * compiler may move the offsets of inlined ones out of the branch that the settings prune, where a
 * kernel of the other shape has none.
 */
static __noinline __s64 percpu_sum_at(__u64 mm, __u32 member) {
    return settled_sum(0, mm, member);
}

/* Not static, so that the verifier walks its loop over all CPUs once and not at every call. */
__noinline __s64 percpu_sum(__u64 mm, __u32 member) {
    return settings.counters_are_percpu ? percpu_sum_at(mm, member) : 0;
}

static __noinline __s64 atomic_sum(__u64 mm, __u32 member) {
    __s64 count = 0;

    bpf_probe_read_kernel(
        &count, sizeof(count),
        (void *)(mm + bpf_core_field_offset(struct mm_struct___pre_v6_2, rss_stat) +
                 (member & 3) * sizeof(count)));
    return count;
}

/*
 * What one thread of a kernel from v5.5 to v6.1 keeps to itself of its own address space, in pages.
 */
static __noinline __s64 thread_cache(struct task_struct *task, __u32 member) {
    struct task_struct___pre_v6_2 *old = (void *)task;
    int count = 0;

    if (bpf_core_field_exists(old->rss_stat))
        bpf_core_read(&count, sizeof(count), &old->rss_stat.count[member & 3]);
    return count;
}

/*
 * Pages; transient negatives (one CPU's update seen before another's) read as 0, as the kernel
 * itself shows them.
 */
static __always_inline __u64 counter_bytes(__s64 pages) {
    return pages < 0 ? 0 : (__u64)pages << settings.page_shift;
}

/* One counter of the address space at this address, in pages. */
static __always_inline __s64 counter_pages(__u64 mm, __u32 member) {
    return settings.counters_are_percpu ? percpu_sum(mm, member) : atomic_sum(mm, member);
}

/*
 * After the counters at this address were read: whether the kernel was taking them down, so that
 * they say nothing.
 */
static __always_inline bool torn_down_at(__u64 mm) {
    int users = 0;

    bpf_probe_read_kernel(&users, sizeof(users),
                          (void *)(mm + bpf_core_field_offset(struct mm_struct, mm_users.counter)));
    return users == 0;
}

#endif
