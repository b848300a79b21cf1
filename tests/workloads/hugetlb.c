// SPDX-License-Identifier: MIT
/*
 * Pages of the hugetlb pool are in none of the counters, whether private, shared, or copied by a
 * child.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#define SIZE MIB(32)

static char *map_hugetlb(int sharing) {
    char *memory =
        mmap(NULL, SIZE, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);

    if (memory == MAP_FAILED)
        skip("cannot have %zu MiB of hugetlb pages: %s", SIZE >> 20, strerror(errno));
    return memory;
}

int main(void) {
    struct figures base = quiet("base");
    char *memory = map_hugetlb(MAP_PRIVATE);
    struct turn go = turn_new();
    pid_t pid;

    EXPECT_NET(quiet("mapped"), base);
    write_pages(memory, SIZE);
    EXPECT_NET(quiet("private, written"), base, .hugetlb = pages(SIZE));
    pid = fork();
    REQUIRE(pid >= 0);
    if (!pid) {
        struct figures child;

        turn_take(go);
        child = quiet("child");
        write_pages(memory, SIZE / 2); /* copied */
        quiet("child wrote half");
        unmap(memory, SIZE);
        if (child.anon != quiet("child unmapped").anon)
            fail("hugetlb pages were taken for anonymous ones");
        _exit(0);
    }
    turn_give(go);
    await_end(pid, 0);
    EXPECT_NET(quiet("child gone"), base, .hugetlb = pages(SIZE));
    unmap(memory, SIZE);
    EXPECT_NET(quiet("unmapped"), base);

    memory = map_hugetlb(MAP_SHARED);
    write_pages(memory, SIZE);
    EXPECT_NET(quiet("shared, written"), base, .hugetlb = pages(SIZE));
    unmap(memory, SIZE);
    EXPECT_NET(quiet("end"), base);
    return 0;
}
