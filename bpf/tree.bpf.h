/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Who belongs to the tree, and which process an address space is shown under. An address space
 * counts once, however many processes use it, and moves on when the one it is shown under leaves.
 */
#ifndef MEMTRACK_TREE_BPF_H
#define MEMTRACK_TREE_BPF_H

static __always_inline struct process *process_of(__u32 tgid) {
    return bpf_map_lookup_elem(&processes, &tgid);
}

/*
 * Fibonacci hashing of the address, whose lowest bits say nothing: an mm_struct has some 1,000
 * bytes.
 */
static __always_inline __u32 bucket_number(__u64 mm, __u32 probe) {
    return (__u32)(((mm >> 6) * 0x9E3779B97F4A7C15ULL >> 32) + probe) & (settings.buckets - 1);
}

static __always_inline struct space *space_of(__u64 mm) {
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

static __always_inline struct space *space_at(__u32 place) {
    return bpf_map_lookup_elem(&spaces, &place);
}

/*
 * The address space that a process uses: in its place, or where another user had to open it anew.
 */
static __always_inline struct space *space_used_by(struct process *process) {
    struct space *space = process->place ? space_at(process->place - 1) : 0;

    if (space && space->mm == process->mm)
        return space;
    return process->mm ? space_of(process->mm) : 0;
}

/* Nobody finds it by its address any more. */
static __always_inline void space_hide(__u32 place, __u64 mm) {
    __u32 number = place / BUCKET_KEYS, key = place % BUCKET_KEYS;
    struct bucket *bucket = bpf_map_lookup_elem(&buckets, &number);

    if (!bucket)
        return;
#pragma unroll
    for (__u32 i = 0; i < BUCKET_KEYS; i++)
        if (i == key && bucket->mm[i] == mm)
            bucket->mm[i] = 0;
}

/*
 * The address space is being torn down: its last user is gone, and what remains is the kernel
 * giving pages back. That is not a series of samples; EXIT or EXEC says it in one.
 */
static __always_inline bool torn_down(struct mm_struct *mm) {
    struct space *space;
    __u64 address;

    if (mm->mm_users.counter)
        return false;
    address = as_number(mm);
    space = space_of(address);
    if (space)
        space_hide(space->place, address);
    return true;
}

static __always_inline bool sharers_add(__u32 place, __u64 slot, __u32 tgid) {
    struct sharer_slot key = {.place = place, .slot = slot};

    return !bpf_map_update_elem(&sharers, &key, &tgid, BPF_NOEXIST);
}

static __always_inline bool sharers_delete(__u32 place, __u64 slot) {
    struct sharer_slot key = {.place = place, .slot = slot};

    return !bpf_map_delete_elem(&sharers, &key);
}

static __always_inline __u32 sharers_find(__u32 place, __u64 slot) {
    struct sharer_slot key = {.place = place, .slot = slot};
    __u32 *found = bpf_map_lookup_elem(&sharers, &key);

    return found ? *found : 0;
}

/* Its key goes last, so that nobody finds a space that is not filled in. */
static __always_inline struct space *space_settle(struct bucket *bucket, __u32 place, __u32 key,
                                                  __u64 mm, __u32 tgid, __u32 pid) {
    struct space *space = bpf_map_lookup_elem(&spaces, &place);

    if (!space || key >= BUCKET_KEYS)
        return 0;
    __builtin_memset(space, 0, offsetof(struct space, words));
    __builtin_memset(&space->peak, 0, sizeof(*space) - offsetof(struct space, peak));
    space->tgid = tgid;
    space->pid = pid;
    space->place = place;
    space->mm = mm;
    barrier();
    bucket->mm[key] = mm;
    return space;
}

/*
 * A process brings an address space that is new to the tree. An old one at the same address is
 * gone, if not closed.
 */
static __noinline struct space *space_open(__u64 mm, __u32 tgid, __u32 pid) {
    struct space *old = space_of(mm);
    struct bucket *bucket;
    __u32 number, place;
    __u8 claim = 1;

    if (old)
        space_hide(old->place, mm);
    for (__u32 probe = 0; probe < BUCKET_PROBES; probe++) {
        number = bucket_number(mm, probe);
        bucket = bpf_map_lookup_elem(&buckets, &number);
        if (!bucket)
            return 0;
        for (__u32 i = 0; i < BUCKET_KEYS; i++) {
            place = number * BUCKET_KEYS + i;
            if (!bucket->mm[i] && !bpf_map_update_elem(&claims, &place, &claim, BPF_NOEXIST))
                return space_settle(bucket, place, i, mm, tgid, pid);
        }
        bucket->overflowed = 1;
    }
    return 0;
}

static __noinline void space_close(struct space *space) {
    __u32 place = space->place;

    space_hide(place, space->mm);
    totals_close(space);
    bpf_map_delete_elem(&claims, &place);
}

/*
 * The process uses an address space that is its own: returns that, or 0 where there is no room for
 * it.
 */
static __always_inline struct space *space_bring(struct process *process, __u64 mm, __u32 tgid) {
    struct space *space = space_open(mm, tgid, process->pid);

    process->place = space ? space->place + 1 : 0;
    return space;
}

/*
 * A process starts to use an address space that another one may use already. Not static, like the
 * next but one, so that the verifier walks it once and not at every call. Returns its place, and
 * one, if it is new to the tree.
 */
__noinline __u32 space_join(__u64 mm, __u32 tgid) {
    struct process *process = process_of(tgid);
    struct space *space = space_of(mm);
    __u32 place;

    if (!process)
        return 0;
    if (!space) {
        space_bring(process, mm, tgid);
        return process->place;
    }
    place = space->place;
    process->place = place + 1;
    process->unkept = 0;
    if (space->tgid == tgid)
        return 0;
    if (!space->shared)
        space->shared = sharers_add(place, SLOT_OF_HOLDER + space->tgid, space->tgid) ||
                        sharers_find(place, SLOT_OF_HOLDER + space->tgid);
    for (__u64 slot = 0; space->shared && slot < SHARERS_MAX; slot++)
        if (sharers_add(place, slot, tgid))
            return 0;
    process->unkept = 1;
    __sync_fetch_and_add(&space->unkept, 1);
    return 0;
}

/*
 * Before a process that an address space is shown under leaves it; if it ends, returns whether that
 * has been told.
 */
static __always_inline bool space_conclude(struct space *space, __u32 tgid, bool ends,
                                           __u32 wait_status) {
    return space && space->tgid == tgid && emit_totals(space, ends, wait_status);
}

/*
 * Exec lets go whoever waits in vfork, and puts the new address space in place, a good while before
 * its hook runs. In between the other one may end or execute as well, and must not leave to this
 * process what it uses no more. A leader that has exited has no address space, and says nothing of
 * its other threads.
 */
static __always_inline bool has_executed(const struct process *process, __u64 mm) {
    __u64 now = 0;

    bpf_probe_read_kernel(
        &now, sizeof(now),
        (void *)(process->leader + bpf_core_field_offset(struct task_struct, mm)));
    return now && now != mm;
}

enum handing_on {
    HANDED_ON,   /* to this process */
    HANDED_OVER, /* to one that has left meanwhile, and hands it on itself */
    GONE,        /* this process has left */
};

/*
 * Whoever leaves takes itself off the processes, or has another place there, before it looks
 * whether it is the holder. So either we see here that it has left, or it sees that it is the
 * holder, or both: then the slot decides.
 */
static __always_inline enum handing_on space_hand_to(struct space *space, __u32 tgid) {
    struct process *next = process_of(tgid);
    __u32 place = space->place;

    if (!next || next->place != place + 1 || has_executed(next, space->mm))
        return GONE;
    space->tgid = tgid;
    space->pid = next->pid;
    totals_restart_peak(space);
    if (!sharers_add(place, SLOT_OF_HOLDER + tgid, tgid)) {
        TALLY(sharers_full, 1);
        return GONE;
    }
    next = process_of(tgid);
    if (next && next->place == place + 1)
        return HANDED_ON;
    return sharers_delete(place, SLOT_OF_HOLDER + tgid) ? GONE : HANDED_OVER;
}

/*
 * A process has stopped using the address space at this place. If it was shown under that process
 * and another one still uses it, it moves to that one: then the caller reports its figures under
 * the new name. Returns whether it has moved. One that is `unkept` is in no slot; nor is one that
 * is just being handed the address space, which is counted already.
 */
__noinline int space_leave(__u32 place, __u32 tgid, bool unkept) {
    struct space *space = space_at(place);
    enum handing_on outcome;
    __u32 next_tgid;

    if (!space)
        return 0;
    if (unkept) {
        __sync_fetch_and_add(&space->unkept, -1);
        return 0;
    }
    if (space->shared ? !sharers_delete(place, SLOT_OF_HOLDER + tgid) : space->tgid != tgid) {
        for (__u64 slot = 0; slot < SHARERS_MAX; slot++)
            if (sharers_find(place, slot) == tgid && sharers_delete(place, slot))
                return 0;
        return 0;
    }
    for (__u64 slot = 0; space->shared && slot < SHARERS_MAX; slot++) {
        next_tgid = sharers_find(place, slot);
        if (!next_tgid || !sharers_delete(place, slot))
            continue;
        outcome = space_hand_to(space, next_tgid);
        if (outcome != GONE)
            return outcome == HANDED_ON;
    }
    if (space->unkept > 0)
        TALLY(sharers_full, 1);
    space_close(space);
    return 0;
}

#endif
