// SPDX-License-Identifier: MIT
/*
 * Transparent huge pages, anonymous: touched, unmapped in part, given back in part, protected in
 * part, shared with a child that writes them.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#define SIZE MIB(64)

static char *map_touched(size_t huge) {
    char *memory = map_aligned(SIZE, true);

    write_steps(memory, SIZE, huge);
    if (mapped_huge(memory, SIZE, "AnonHugePages:") != SIZE)
        skip("not enough huge pages free");
    return memory;
}

static void touch_it(struct figures base, size_t huge) {
    char *memory = map_aligned(SIZE, true);

    read_pages(memory, huge); /* the huge zero page */
    EXPECT_NET(quiet("read"), base);
    write_steps(memory, huge, huge);
    /* a huge page from 6.12 on, before that a small one among maps of the zero page */
    quiet("zero page written");
    unmap(memory, SIZE);
    EXPECT_NET(quiet("unmapped"), base);

    memory = map_touched(huge);
    EXPECT_NET(quiet("touched"), base, .anon = pages(SIZE));
    unmap(memory, SIZE);
    EXPECT_NET(quiet("end"), base);
}

/* Each way of splitting a mapping: the pages stay where they were until they go. */
static void split_it(struct figures base, size_t huge) {
    char *memory = map_touched(huge);
    size_t page = (size_t)page_size(), gone = 0;

    EXPECT_NET(quiet("touched"), base, .anon = pages(SIZE));

    unmap(memory + huge / 2, page);
    gone += page;
    EXPECT_NET(quiet("a page unmapped"), base, .anon = pages(SIZE - gone));

    REQUIRE(!madvise(memory + huge, huge / 2, MADV_DONTNEED));
    gone += huge / 2;
    EXPECT_NET(quiet("half given back"), base, .anon = pages(SIZE - gone));

    REQUIRE(!mprotect(memory, page, PROT_READ));
    EXPECT_NET(quiet("a page protected"), base, .anon = pages(SIZE - gone));

    unmap(memory, huge / 2); /* the rest of what was split first */
    gone += huge / 2;
    EXPECT_NET(quiet("the half before it unmapped"), base, .anon = pages(SIZE - gone));

    /* refaulted: one huge page at most holds both halves again */
    write_pages(memory + huge, huge / 2);
    gone -= huge / 2;
    EXPECT_NET(quiet("half touched again"), base, .anon = pages(SIZE - gone));

    unmap(memory + huge / 2 + page, SIZE - huge / 2 - page);
    EXPECT_NET(quiet("end"), base);
}

static void fork_it(struct figures base, size_t huge) {
    char *memory = map_touched(huge);
    struct turn go = turn_new();
    struct figures parent = quiet("touched"), child;
    pid_t pid = fork();

    REQUIRE(pid >= 0);
    if (!pid) {
        turn_take(go);
        child = quiet("child");
        if (child.anon != parent.anon)
            fail("the child has %ld anon, its parent %ld", child.anon, parent.anon);
        /* copied, as small pages or as a huge one: the kernel's choice */
        write_pages(memory, SIZE);
        child = quiet("child wrote");
        if (child.anon != parent.anon)
            fail("the child has %ld anon after writing, its parent %ld", child.anon, parent.anon);
        unmap(memory, SIZE);
        child = quiet("child unmapped");
        if (child.anon != base.anon)
            fail("the child has %ld anon after unmapping, not %ld", child.anon, base.anon);
        _exit(0);
    }
    turn_give(go);
    await_end(pid, 0);
    EXPECT_NET(quiet("child gone"), base, .anon = pages(SIZE));
    write_pages(memory, SIZE);
    EXPECT_NET(quiet("written"), base, .anon = pages(SIZE));
    unmap(memory, SIZE);
    EXPECT_NET(quiet("end"), base);
}

int main(int argc, char **argv) {
    size_t huge = huge_page_size(SIZE);
    const char *mode = argc > 1 ? argv[1] : "touch";
    struct figures base = quiet("base");

    if (!strcmp(mode, "touch"))
        touch_it(base, huge);
    else if (!strcmp(mode, "split"))
        split_it(base, huge);
    else if (!strcmp(mode, "fork"))
        fork_it(base, huge);
    else
        fail("no mode %s", mode);
    return 0;
}
