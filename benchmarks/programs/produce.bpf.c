// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Writes real records into a ring as fast as one CPU can, to measure the consumer. What memtrack's
 * own programs do before they write is left out; how they reserve, submit and wake the consumer is
 * the same.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* As in benchmarks/sample.py; a test compares the two. */
#define RECORDS 65536

struct record {
    __u64 type, time_ns, payload[4];
};

/* Records that were recorded, to be written again and again. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, RECORDS);
    __uint(map_flags, BPF_F_MMAPABLE);
    __type(key, __u32);
    __type(value, struct record);
} records SEC(".maps");

struct order {
    /* From the host. */
    __u64 lap_ns; /* what the records span */
    __u64 wakeup_bytes;
    __u64 batch; /* how many to write in one run */
    /* go on when the ring is full, as memtrack does; otherwise stop and let the host try again */
    __u64 drop_full;
    /* To the host. */
    __u64 written, dropped;
    __u64 tried; /* as the kernel's loop counts, which knows nothing of the two */
};

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __uint(map_flags, BPF_F_MMAPABLE);
    __type(key, __u32);
    __type(value, struct order);
} orders SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 4096); /* the loader sets the real size */
} ring SEC(".maps");

static long write_one(__u64 index, struct order **context) {
    struct order *order = *context;
    __u64 position = order->written + order->dropped, waiting, flags;
    __u32 key = position % RECORDS;
    struct record *from = bpf_map_lookup_elem(&records, &key), *to;

    (void)index;
    if (!from)
        return 1;
    waiting = bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA);
    to = bpf_ringbuf_reserve(&ring, sizeof(*to), 0);
    if (!to) {
        order->dropped += order->drop_full;
        return !order->drop_full;
    }
    *to = *from;
    to->time_ns += position / RECORDS * order->lap_ns;
    flags =
        waiting - order->wakeup_bytes < 8 * sizeof(*to) ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
    bpf_ringbuf_submit(to, flags);
    order->written++;
    return 0;
}

SEC("syscall")
int produce(void *ctx) {
    __u32 zero = 0;
    struct order *order = bpf_map_lookup_elem(&orders, &zero);
    long tried;

    (void)ctx;
    if (!order)
        return 1;
    tried = bpf_loop(order->batch, write_one, &order, 0);
    if (tried > 0)
        order->tried += (__u64)tried;
    return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
