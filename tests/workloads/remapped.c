// SPDX-License-Identifier: MIT
/*
 * mremap that grows and moves, a hole in the middle, the hole refaulted: nothing is counted twice.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/mman.h>

#include "oracle.h"
#include "region.h"

#define SIZE MIB(64)
#define HOLE MIB(16)

int main(void) {
    struct figures base = quiet("base");
    char *memory = map_anon(SIZE), *hole, *elsewhere;

    write_pages(memory, SIZE);
    EXPECT_NET(quiet("written"), base, .anon = pages(SIZE));

    memory = mremap(memory, SIZE, 2 * SIZE, MREMAP_MAYMOVE);
    REQUIRE(memory != MAP_FAILED);
    EXPECT_NET(quiet("grown"), base, .anon = pages(SIZE));

    elsewhere = map_anon(2 * SIZE);
    REQUIRE(mremap(memory, 2 * SIZE, 2 * SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere) ==
            elsewhere);
    memory = elsewhere;
    EXPECT_NET(quiet("moved"), base, .anon = pages(SIZE));

    hole = memory + SIZE / 4;
    note("hole unmapped", 0, (uintptr_t)hole, pages(HOLE));
    unmap(hole, HOLE);
    EXPECT_NET(quiet("hole unmapped"), base, .anon = pages(SIZE - HOLE));

    REQUIRE(mmap(hole, HOLE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                 0) == hole);
    small_pages_only(hole, HOLE);
    note("hole refaulted", 0, (uintptr_t)hole, pages(HOLE));
    write_pages(hole, HOLE);
    EXPECT_NET(quiet("hole refaulted"), base, .anon = pages(SIZE));

    /* over several mappings, which only shrinking may do */
    memory = mremap(memory, 2 * SIZE, SIZE / 2, 0);
    if (memory == MAP_FAILED)
        unmap(memory = elsewhere + SIZE / 2, SIZE + SIZE / 2);
    EXPECT_NET(quiet("shrunk"), base, .anon = pages(SIZE / 2));

    unmap(elsewhere, 2 * SIZE);
    EXPECT_NET(quiet("end"), base);
    return 0;
}
