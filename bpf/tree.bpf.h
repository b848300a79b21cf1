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
    return bpf_map_lookup_elem(&spaces, &mm);
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
    struct sharers *s;
    bool full = true;

    bpf_map_update_elem(&sharers, &mm, &no_sharers, BPF_NOEXIST);
    s = bpf_map_lookup_elem(&sharers, &mm);
    if (s) {
        bpf_spin_lock(&s->lock);
        if (s->count < SHARERS_MAX) {
            s->tgids[s->count++] = tgid;
            full = false;
        }
        bpf_spin_unlock(&s->lock);
    }
    if (full)
        TALLY(sharers_full, 1);
}

static __always_inline void sharers_remove(__u64 mm, __u32 tgid)
{
    struct sharers *s = bpf_map_lookup_elem(&sharers, &mm);

    if (!s)
        return;
    bpf_spin_lock(&s->lock);
    for (__u32 i = 0; i < SHARERS_MAX; i++) {
        __u32 last = s->count - 1;

        if (i < s->count && s->tgids[i] == tgid) {
            if (last < SHARERS_MAX)
                s->tgids[i] = s->tgids[last];
            s->count = last;
            break;
        }
    }
    bpf_spin_unlock(&s->lock);
}

/* Takes one of the other users off the list; 0 if there is none. */
static __always_inline __u32 sharers_pop(__u64 mm)
{
    struct sharers *s = bpf_map_lookup_elem(&sharers, &mm);
    __u32 tgid = 0;

    if (!s)
        return 0;
    bpf_spin_lock(&s->lock);
    if (s->count > 0) {
        __u32 last = s->count - 1;

        if (last < SHARERS_MAX)
            tgid = s->tgids[last];
        s->count = last;
    }
    bpf_spin_unlock(&s->lock);
    return tgid;
}

/* A process brings an address space that is new to the tree. A stale entry at the same address is overwritten. */
static __always_inline struct space *space_open(__u64 mm, __u32 tgid, __u32 pid)
{
    struct space fresh = {.tgid = tgid, .pid = pid};

    bpf_map_delete_elem(&sharers, &mm);
    if (bpf_map_update_elem(&spaces, &mm, &fresh, BPF_ANY)) {
        TALLY(spaces_full, 1);
        return 0;
    }
    return bpf_map_lookup_elem(&spaces, &mm);
}

/* A process starts to use an address space that another one may use already. Returns it if it is new to the tree. */
static __always_inline struct space *space_join(__u64 mm, __u32 tgid, __u32 pid)
{
    if (!bpf_map_lookup_elem(&spaces, &mm))
        return space_open(mm, tgid, pid);
    sharers_add(mm, tgid);
    return 0;
}

/*
 * A process stops using mm. If it was shown under that process and another one still uses it, it moves to that one:
 * then the caller reports its figures under the new name. Returns the address space in that case.
 */
static __always_inline struct space *space_leave(__u64 mm, __u32 tgid)
{
    struct space *space = bpf_map_lookup_elem(&spaces, &mm);
    struct process *next;
    __u32 next_tgid;

    if (!space)
        return 0;
    if (space->tgid != tgid) {
        sharers_remove(mm, tgid);
        return 0;
    }
    next_tgid = sharers_pop(mm);
    next = next_tgid ? process_of(next_tgid) : 0;
    if (!next) {
        bpf_map_delete_elem(&spaces, &mm);
        bpf_map_delete_elem(&sharers, &mm);
        return 0;
    }
    space->tgid = next_tgid;
    space->pid = next->pid;
    return space;
}

#endif
