// SPDX-License-Identifier: MIT
/*
 * Kernel memory that a driver maps, here that of a BPF array: where the kernel inserts pages
 * (vm_insert_page(), without a fault) they count as file, and where it maps bare page frames they
 * count as nothing.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/bpf.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"

#define SIZE MIB(1)

#ifndef BPF_F_MMAPABLE
#define BPF_F_MMAPABLE (1U << 10)
#endif

int main(void) {
    union bpf_attr array = {
        .map_type = BPF_MAP_TYPE_ARRAY,
        .key_size = 4,
        .value_size = 8,
        .max_entries = SIZE / 8,
        .map_flags = BPF_F_MMAPABLE,
    };
    int fd = (int)syscall(SYS_bpf, BPF_MAP_CREATE, &array, sizeof(array));
    struct figures base = quiet("base"), now;
    char *memory;

    if (fd < 0)
        skip("cannot make a BPF array: %s", strerror(errno));
    memory = map_file(fd, SIZE, true);
    quiet("mapped");
    read_pages(memory, SIZE); /* some kernels map at the first touch */
    now = quiet("read");
    EXPECT_NET(now, base, .file = pages(SIZE) - (now.special - base.special));
    unmap(memory, SIZE);
    EXPECT_NET(quiet("end"), base);
    return 0;
}
