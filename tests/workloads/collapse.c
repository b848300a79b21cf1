// SPDX-License-Identifier: MIT
/*
 * Small pages made into huge ones, at once by MADV_COLLAPSE and in time by khugepaged: holes are
 * filled.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "oracle.h"
#include "region.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define SIZE MIB(64)
#define POLL_NS 50000000
#define POLLS_MAX                                                                             \
    1200 /* a minute: khugepaged has the lowest priority, and goes through all others' memory \
            first */

static void split_again(struct figures base, char *memory) {
    size_t page = (size_t)page_size();

    /* splits nothing, and keeps khugepaged from filling holes */
    REQUIRE(!madvise(memory, SIZE, MADV_NOHUGEPAGE));
    EXPECT_NET(quiet("collapsed"), base, .anon = pages(SIZE));
    REQUIRE(!madvise(memory + page, page, MADV_DONTNEED));
    EXPECT_NET(quiet("a page given back"), base, .anon = pages(SIZE) - 1);
    unmap(memory, SIZE);
    EXPECT_NET(quiet("end"), base);
}

static void at_once(struct figures base) {
    char *memory = map_aligned(SIZE, false);

    write_steps(memory, SIZE, 2 * (size_t)page_size());
    EXPECT_NET(quiet("every other page"), base, .anon = pages(SIZE) / 2);
    REQUIRE(!madvise(memory, SIZE, MADV_HUGEPAGE));
    if (madvise(memory, SIZE, MADV_COLLAPSE))
        skip("MADV_COLLAPSE: %s", strerror(errno));
    split_again(base, memory);
}

static void in_time(struct figures base) {
    const struct timespec pause = {.tv_nsec = POLL_NS};
    char *memory = map_aligned(SIZE, false);

    write_steps(memory, SIZE, 2 * (size_t)page_size());
    EXPECT_NET(quiet("every other page"), base, .anon = pages(SIZE) / 2);
    REQUIRE(!madvise(memory, SIZE, MADV_HUGEPAGE));
    for (int poll = 0; mapped_huge(memory, SIZE, "AnonHugePages:") != SIZE; poll++) {
        if (poll == POLLS_MAX)
            skip("khugepaged did not come within a minute");
        nanosleep(&pause, NULL);
    }
    split_again(base, memory);
}

/* Shared memory: what is collapsed need not be mapped again at once. */
static void shared(struct figures base) {
    size_t huge = huge_page_size(SIZE);
    char *around =
        mmap(NULL, SIZE + huge, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char *memory = (char *)(((size_t)around + huge - 1) & ~(huge - 1));

    REQUIRE(around != MAP_FAILED);
    REQUIRE(!madvise(memory, SIZE, MADV_NOHUGEPAGE));
    write_pages(memory, SIZE);
    EXPECT_NET(quiet("written"), base, .shmem = pages(SIZE));
    REQUIRE(!madvise(memory, SIZE, MADV_HUGEPAGE));
    if (madvise(memory, SIZE, MADV_COLLAPSE))
        skip("MADV_COLLAPSE: %s", strerror(errno));
    quiet("collapsed");
    read_pages(memory, SIZE);
    EXPECT_NET(quiet("read"), base, .shmem = pages(SIZE));
    unmap(around, SIZE + huge);
    EXPECT_NET(quiet("end"), base);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "madvise";
    struct figures base;

    huge_page_size(SIZE);
    base = quiet("base");
    if (!strcmp(mode, "madvise"))
        at_once(base);
    else if (!strcmp(mode, "khugepaged"))
        in_time(base);
    else if (!strcmp(mode, "shmem"))
        shared(base);
    else
        fail("no mode %s", mode);
    return 0;
}
