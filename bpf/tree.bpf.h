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

static __always_inline struct space *space_of(__u64 mm)
{
    struct space *space = bpf_map_lookup_elem(&spaces, &mm);

    return space && space->pid ? space : 0; /* one without a pid is just being opened */
}

/*
 * The address space is being torn down: its last user is gone, and what remains is the kernel giving pages back. That
 * is not a series of samples; EXIT or EXEC says it in one.
 */
static __always_inline bool torn_down(struct mm_struct *mm)
{
    return mm->mm_users.counter == 0;
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

/* A process brings an address space that is new to the tree. A stale entry at the same address is overwritten. */
static __always_inline struct space *space_open(__u64 mm, __u32 tgid, __u32 pid)
{
    struct space *space;

    /* Inserted blank and filled in, because it is too large for the stack of a program that calls on. */
    if (bpf_map_update_elem(&spaces, &mm, &blank_space, BPF_ANY)) {
        TALLY(spaces_full, 1);
        return 0;
    }
    space = bpf_map_lookup_elem(&spaces, &mm);
    if (space) {
        space->mm = mm;
        space->tgid = tgid;
        space->pid = pid;
    }
    return space;
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
        totals_close(space, mm);
        bpf_map_delete_elem(&spaces, &mm);
        return 0;
    }
    space->tgid = next_tgid;
    space->pid = next->pid;
    totals_restart_peak(space, bpf_ktime_get_ns());
    return space;
}

#endif
