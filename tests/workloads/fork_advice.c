// SPDX-License-Identifier: MIT
/*
 * Regions that a child does not get: MADV_DONTFORK leaves the mapping out, MADV_WIPEONFORK leaves
 * the pages out.
 */
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#define SIZE MIB(64)

int main(int argc, char **argv) {
    bool wipe = argc > 1 && !strcmp(argv[1], "wipe");
    struct figures base = quiet("base"), child;
    char *memory = map_anon(SIZE);
    struct turn go = turn_new();
    pid_t pid;

    REQUIRE(!madvise(memory, SIZE, wipe ? MADV_WIPEONFORK : MADV_DONTFORK));
    write_pages(memory, SIZE);
    EXPECT_NET(quiet("written"), base, .anon = pages(SIZE));
    pid = fork();
    REQUIRE(pid >= 0);
    if (!pid) {
        turn_take(go);
        if (quiet("child awake").anon != base.anon)
            fail("the child got the region");
        if (wipe) {
            write_pages(memory, SIZE / 2);
            if (quiet("child wrote half").anon != base.anon + pages(SIZE / 2))
                fail("the child's half is not what it wrote");
        }
        _exit(0);
    }
    await_sleep(pid);
    child = quiet_of(pid, "child idle");
    if (child.anon != base.anon)
        fail("the child starts with %ld anon pages, not %ld", child.anon, base.anon);
    turn_give(go);
    await_end(pid, 0);
    EXPECT_NET(quiet("child gone"), base, .anon = pages(SIZE));
    return 0;
}
