/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Kernel pointers as numbers, which the verifier lets us compute with. */
#ifndef MEMTRACK_NUMBER_BPF_H
#define MEMTRACK_NUMBER_BPF_H

/* Any place of ours whose address does not change: the difference of two pointers is a number. */
__u64 anchor;
__u64 anchor_address; /* 0 until it is first asked for */

/* A pointer read back from memory by a helper has lost its type. */
static __always_inline __u64 pointer_read_back(const void *pointer) {
    const void *volatile slot = pointer;
    __u64 number = 0;

    bpf_probe_read_kernel(&number, sizeof(number), (const void *)&slot);
    return number;
}

static __always_inline __u64 as_number(const void *pointer) {
    __u64 distance = (__u64)pointer - (__u64)&anchor;

    barrier_var(distance); /* subtracted first, or it would be arithmetic on a pointer after all */
    if (!anchor_address)
        anchor_address = pointer_read_back(&anchor);
    return distance + anchor_address;
}

#endif
