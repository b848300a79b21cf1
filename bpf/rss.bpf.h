/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* The counters, one record per change. One of the three ways below is loaded, never two. */
#ifndef MEMTRACK_RSS_BPF_H
#define MEMTRACK_RSS_BPF_H

static __always_inline void rss_submit(struct event *e, __u64 waiting, __u32 pid, __u32 member,
                                       __u64 now, __u64 size_bytes) {
    fill(e, EVENT_TYPE_RSS, pid, acting_tid(), now);
    e->rss.member = member;
    e->rss.size_bytes = size_bytes;
    bpf_ringbuf_submit(e, ring_submit_flags(waiting));
}

/*
 * v6.2 and later: the tracepoint says that a counter moved, and the sum is ours. Reserved before it
 * is summed, so that the order of the records is an order in which none misses a change that an
 * earlier one had. For the totals, who finds the figure moved by others three times need not go on:
 * the last of those began to sum after our first look, and so has our change in its sum.
 */
SEC("tp_btf/rss_stat")
int BPF_PROG(rss_stat_percpu, struct mm_struct *mm, int member) {
    __s64 pages = 0, change = 0, before = 0;
    __u64 address, waiting = 0, now, word;
    struct event *e = 0;
    struct space *space;

    if (exec_charges(mm, member))
        return 0;
    address = as_number(mm);
    space = space_of(address);
    if (!space || torn_down(mm) || (__u32)member >= EVENT_MEMBERS)
        return 0;
    if (settings.every_event)
        e = sample_reserve(&waiting);
    /*
     * A reading of the clock is a good part of what a change costs: without records it is left to
     * when a sum falls.
     */
    now = settings.every_event || settings.coarse ? bpf_ktime_get_ns() : 0;
    for (int attempt = 0; attempt < TOTALS_ATTEMPTS; attempt++) {
        word = figure_word(space, member);
        pages = settled_sum(mm, 0, member);
        if (!settings.totals || pages == pages_of(word))
            break;
        if (figure_swap(space, member, word, pages)) {
            before = pages_of(word);
            change = pages - before;
            break;
        }
    }
    if (settings.totals) {
        totals_carry(space, member, change, before, now);
        /* closed meanwhile: nobody else would take this off again */
        if (*(volatile __u64 *)&space->mm != address)
            totals_settle(space->place, member, now);
    }
    if (settings.coarse && worth_telling(space, member, pages, now))
        e = sample_reserve(&waiting);
    if (e)
        rss_submit(e, waiting, space->pid, member, now, counter_bytes(pages));
    return 0;
}

/* v7.0 and later: what exec_charges let go comes in one. */
static __always_inline int arguments_charged(struct task_struct *task) {
    __u64 mm = as_number(task->mm), waiting = 0, now;
    struct space *space = space_of(mm);
    struct event *e = 0;
    __s64 pages;

    if (!space || !settings.totals)
        return 0;
    if (counter_pages(mm, EVENT_MEMBER_ANON) == pages_of(figure_word(space, EVENT_MEMBER_ANON)))
        return 0;
    if (settings.every_event)
        e = sample_reserve(&waiting);
    now = bpf_ktime_get_ns();
    pages = totals_settle(space->place, EVENT_MEMBER_ANON, now);
    if (settings.coarse && worth_telling(space, EVENT_MEMBER_ANON, pages, now))
        e = sample_reserve(&waiting);
    if (e)
        rss_submit(e, waiting, space->pid, EVENT_MEMBER_ANON, now, counter_bytes(pages));
    return 0;
}

SEC("tp_btf/sched_prepare_exec")
int BPF_PROG(sched_prepare_exec, struct task_struct *task) {
    return arguments_charged(task);
}

STANDIN(sched_prepare_exec, 1, arguments_charged)
STANDIN(sched_prepare_exec, 2, arguments_charged)

/* v5.5 to v6.1: the tracepoint brings the counter's value, in pages. */
SEC("tp_btf/rss_stat")
int BPF_PROG(rss_stat_count, struct mm_struct *mm, int member, long count) {
    __u64 address = as_number(mm);
    struct space *space = space_of(address);
    struct event *e;
    __u64 waiting;

    if (!space || torn_down(mm) || (__u32)member >= EVENT_MEMBERS)
        return 0;
    e = sample_reserve(&waiting);
    if (e)
        rss_submit(e, waiting, space->pid, member, bpf_ktime_get_ns(), counter_bytes(count));
    return 0;
}

/*
 * Where the per-CPU parts cannot be reached: the classic tracepoint has the exact sum but no
 * address space, and this one the other way round. On one event they run one after the other on the
 * same CPU.
 */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u32);
} noted_pid SEC(".maps");

SEC("tp_btf/rss_stat")
int BPF_PROG(rss_stat_mm, struct mm_struct *mm) {
    __u64 address = as_number(mm);
    struct space *space = space_of(address);
    __u32 zero = 0, *noted = bpf_map_lookup_elem(&noted_pid, &zero);

    if (noted)
        *noted = space && !torn_down(mm) ? space->pid : 0;
    return 0;
}

SEC("tp/kmem/rss_stat")
int rss_stat_size(struct trace_event_raw_rss_stat *ctx) {
    __u32 zero = 0, *noted = bpf_map_lookup_elem(&noted_pid, &zero), pid;
    long size = BPF_CORE_READ(ctx, size);
    int member = BPF_CORE_READ(ctx, member);
    struct event *e;
    __u64 waiting;

    pid = noted ? *noted : 0;
    if (!pid || (__u32)member >= EVENT_MEMBERS)
        return 0;
    *noted = 0;
    e = sample_reserve(&waiting);
    if (e)
        rss_submit(e, waiting, pid, member, bpf_ktime_get_ns(), size < 0 ? 0 : size);
    return 0;
}

#endif
