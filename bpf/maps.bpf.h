/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* The maps, what the settings, and the ring's reserve and submit. */
#ifndef MEMTRACK_MAPS_BPF_H
#define MEMTRACK_MAPS_BPF_H

const volatile struct settings settings SEC(".rodata.settings") = {.cpus = 1, .page_shift = 12};

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 4096); /* the loader sets the real size */
} ring SEC(".maps");

enum process_state {
    PROCESS_MEMBER = 0,
    /* Spawned by the recorder, has not run its own program yet: nothing of it counts. */
    PROCESS_PENDING = 1,
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct process);
} processes SEC(".maps");

/* An address space in use by the tree, and the process that it is shown under. */
struct space {
    __u64 mm; /* 0 once it has been closed */
    __u32 tgid;
    __u32 pid;
    __u32 sync_round; /* the last round of adopt_task that reported it */
    __s32 cached[4];  /* v5.5 to v6.1: what its threads keep to themselves, summed during a round */
    __u32 cache_round;
    __u32 shared;        /* has had further users */
    __s64 unkept;        /* users for which no slot was free */
    __u32 place;         /* which of the spaces it is */
    __u64 words[4];      /* figures by member; see totals.bpf.h */
    __s64 resident;      /* file + anon + shmem, in pages */
    __u64 rose_ns;       /* when that last grew */
    struct peak peak;    /* under the tree's lock */
    __s64 told_pages[4]; /* as last written into the ring, for the resolution */
    __u64 told_ns[4];
};

/*
 * Address spaces by mm. The counters of every process on the machine move through our hooks, so the
 * way from an mm to its space, or to there being none, is the first thing that a record costs: a
 * bucket is one cache line of keys, found without a call, and the spaces lie in an array in the
 * order of the keys. A space is claimed by an insertion, which succeeds for one of those who race
 * for it.
 *
 * A key goes when the kernel tears the address space down, for then the address is free for another
 * one, of whomever. The space stays until its process says EXEC or EXIT, which may be later, and is
 * found by its place.
 */
#define BUCKET_KEYS 7
#define BUCKET_PROBES 4

struct bucket {
    __u64 mm[BUCKET_KEYS];
    __u64 overflowed; /* some key had to go to the next bucket */
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    /* the loader sets the real sizes, a power of two here and BUCKET_KEYS as many below */
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct bucket);
} buckets SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct space);
} spaces SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 1);
    __type(key, __u32); /* which of the spaces */
    __type(value, __u8);
} claims SEC(".maps");

/*
 * Further processes that use an address space (vfork, CLONE_VM without CLONE_THREAD): whoever is
 * left when the process that it is shown under leaves. A slot is taken by an insertion and freed by
 * a deletion, each of which succeeds for one of those who race for it: tracing programs have no
 * locks on v5.10. More than SHARERS_MAX at once are not remembered, and when none but those are
 * left that is counted: the next report takes it up again. Beyond those is the slot of the process
 * that it is shown under: whoever frees it hands the address space on.
 */
#define SHARERS_MAX 32
#define SLOT_OF_HOLDER (1ULL << 32) /* and the tgid */

struct sharer_slot {
    __u64 place;
    __u64 slot;
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 8192);
    __type(key, struct sharer_slot);
    __type(value, __u32); /* tgid */
} sharers SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct control);
} control_map SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct tally);
} tally_map SEC(".maps");

struct tree {
    struct bpf_spin_lock lock; /* of the peaks, here and in every struct space */
    __u32 zero;
    struct figures figures;
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct tree);
} tree_map SEC(".maps");

static __always_inline struct control *control(void) {
    __u32 zero = 0;

    return bpf_map_lookup_elem(&control_map, &zero);
}

#define TALLY(field, n)                                                 \
    do {                                                                \
        __u32 zero_ = 0;                                                \
        struct tally *tally_ = bpf_map_lookup_elem(&tally_map, &zero_); \
                                                                        \
        if (tally_)                                                     \
            __sync_fetch_and_add(&tally_->field, (n));                  \
    } while (0)

/*
 * RSS and RMAP records leave ring_headroom_bytes free: losing one of those costs resolution until
 * the next, losing a FORK or an EXIT would cost the shape of the tree.
 */
static __always_inline bool ring_has_room(__u64 waiting) {
    return waiting + settings.ring_headroom_bytes < settings.ring_bytes;
}

/*
 * Waking the consumer costs more than writing a record, so only the record that crosses the mark
 * wakes it. The window is two records wide because other CPUs write meanwhile; one wake-up too many
 * is harmless, and one missed is made good by the consumer's own time-out.
 */
static __always_inline __u64 ring_submit_flags(__u64 waiting) {
    return waiting >= settings.ring_wakeup_bytes &&
                   waiting < settings.ring_wakeup_bytes + 2 * (sizeof(struct event) + 8)
               ? BPF_RB_FORCE_WAKEUP
               : BPF_RB_NO_WAKEUP;
}

/*
 * Records that must not be lost are rare: those that come when the consumer should be up already
 * may wake it again.
 */
static __always_inline void lifecycle_submit(void *sample) {
    __u64 waiting = bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA);

    bpf_ringbuf_submit(
        sample, waiting >= settings.ring_wakeup_bytes ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
}

#endif
