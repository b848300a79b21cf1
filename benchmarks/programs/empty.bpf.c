// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The floor: programs on memtrack's hooks that do nothing. What they cost is the kernel's price for
 * being called.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define EMPTY(name)               \
    SEC("tp_btf/" #name)          \
    int empty_##name(void *ctx) { \
        (void)ctx;                \
        return 0;                 \
    }

EMPTY(rss_stat)
EMPTY(task_newtask)
EMPTY(sched_process_exec)
EMPTY(sched_process_exit)

char LICENSE[] SEC("license") = "Dual MIT/GPL";
