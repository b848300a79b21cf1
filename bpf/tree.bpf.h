/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Who belongs to the tree, and which process an address space is shown under. An address space counts once, however
 * many processes use it, and moves on when the one it is shown under leaves.
 */
#ifndef MEMTRACK_TREE_BPF_H
#define MEMTRACK_TREE_BPF_H

static __always_inline struct process *process_of(__u32 tgid)
{
    return bpf_map_lookup_elem(&processes, &tgid);
}

/* Fibonacci hashing of the address, whose lowest bits say nothing: an mm_struct has some 1,000 bytes. */
static __always_inline __u32 bucket_number(__u64 mm, __u32 probe)
{
    return (__u32)(((mm >> 6) * 0x9E3779B97F4A7C15ULL >> 32) + probe) & (settings.buckets - 1);
}

static __always_inline struct space *space_of(__u64 mm)
{
    struct space *space;
    struct bucket *bucket;
    __u32 number, place;

    for (__u32 probe = 0; probe < BUCKET_PROBES; probe++) {
        number = bucket_number(mm, probe);
        bucket = bpf_map_lookup_elem(&buckets, &number);
        if (!bucket)
            return 0;
#pragma unroll
        for (__u32 i = 0; i < BUCKET_KEYS; i++) {
            if (bucket->mm[i] == mm) {
                place = number * BUCKET_KEYS + i;
                return bpf_map_lookup_elem(&spaces, &place);
            }
        }
        if (!bucket->overflowed)
            return 0;
    }
    return 0;
}

static __always_inline void sharers_add(__u64 mm, __u32 tgid)
{
    struct sharer_slot key = {.mm = mm};

    for (__u64 slot = 0; slot < SHARERS_MAX; slot++) {
        key.slot = slot;
        if (!bpf_map_update_elem(&sharers, &key, &tgid, BPF_NOEXIST))
            return;
    }
    TALLY(sharers_full, 1);
}

/* Frees the slot of one further user, or of any for tgid 0. Returns whose it was, 0 if there was none. */
static __always_inline __u32 sharers_take(__u64 mm, __u32 tgid)
{
    struct sharer_slot key = {.mm = mm};
    __u32 *found, taken;

    for (__u64 slot = 0; slot < SHARERS_MAX; slot++) {
        key.slot = slot;
        found = bpf_map_lookup_elem(&sharers, &key);
        if (!found)
            continue;
        taken = *found;
        if ((!tgid || taken == tgid) && !bpf_map_delete_elem(&sharers, &key))
            return taken;
    }
    return 0;
}

/* Its key goes last, so that nobody finds a space that is not filled in. */
static __always_inline struct space *space_settle(struct bucket *bucket, __u32 place, __u32 key, __u64 mm, __u32 tgid,
                                                  __u32 pid)
{
    struct space *space = bpf_map_lookup_elem(&spaces, &place);

    if (!space || key >= BUCKET_KEYS)
        return 0;
    __builtin_memset(space, 0, sizeof(*space));
    space->mm = mm;
    space->tgid = tgid;
    space->pid = pid;
    space->place = place;
    barrier();
    bucket->mm[key] = mm;
    return space;
}

/* A process brings an address space that is new to the tree. A stale entry at the same address is overwritten. */
static __noinline struct space *space_open(__u64 mm, __u32 tgid, __u32 pid)
{
    struct bucket *bucket;
    __u32 number, place;
    __u8 claim = 1;

    for (__u32 probe = 0; probe < BUCKET_PROBES; probe++) {
        number = bucket_number(mm, probe);
        bucket = bpf_map_lookup_elem(&buckets, &number);
        if (!bucket)
            return 0;
        for (__u32 i = 0; i < BUCKET_KEYS; i++) {
            place = number * BUCKET_KEYS + i;
            if (bucket->mm[i] == mm || (!bucket->mm[i] && !bpf_map_update_elem(&claims, &place, &claim, BPF_NOEXIST)))
                return space_settle(bucket, place, i, mm, tgid, pid);
        }
        bucket->overflowed = 1;
    }
    TALLY(spaces_full, 1);
    return 0;
}

static __noinline void space_close(struct space *space, __u64 mm)
{
    __u32 place = space->place, number = place / BUCKET_KEYS;
    struct bucket *bucket = bpf_map_lookup_elem(&buckets, &number);

    if (!bucket)
        return;
#pragma unroll
    for (__u32 i = 0; i < BUCKET_KEYS; i++)
        if (bucket->mm[i] == mm)
            bucket->mm[i] = 0;
    totals_close(space);
    bpf_map_delete_elem(&claims, &place);
}

/* A process starts to use an address space that another one may use already. Returns it if it is new to the tree. */
static __always_inline struct space *space_join(__u64 mm, __u32 tgid, __u32 pid)
{
    struct space *space = space_of(mm);

    if (!space)
        return space_open(mm, tgid, pid);
    space->shared = 1;
    sharers_add(mm, tgid);
    return 0;
}

/* Before a process that an address space is shown under leaves it. */
static __always_inline void space_conclude(__u64 mm, __u32 tgid)
{
    struct space *space = space_of(mm);

    if (space && space->tgid == tgid)
        emit_totals(space);
}

/*
 * A process stops using mm. If it was shown under that process and another one still uses it, it moves to that one:
 * then the caller reports its figures under the new name. Returns the address space in that case.
 */
static __always_inline struct space *space_leave(__u64 mm, __u32 tgid)
{
    struct space *space = space_of(mm);
    struct process *next = 0;
    __u32 next_tgid = 0;

    if (!space)
        return 0;
    if (space->tgid != tgid) {
        sharers_take(mm, tgid);
        return 0;
    }
    if (space->shared)
        next_tgid = sharers_take(mm, 0);
    if (next_tgid)
        next = process_of(next_tgid);
    if (!next) {
        space_close(space, mm);
        return 0;
    }
    space->tgid = next_tgid;
    space->pid = next->pid;
    totals_restart_peak(space);
    return space;
}

#endif
