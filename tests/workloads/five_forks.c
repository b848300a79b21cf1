// SPDX-License-Identifier: MIT
/*
 * Five forks of a process that holds 200 MiB, all asleep: the plain sum over address spaces is six
 * times that, although the pages are shared until written.
 */
#include <signal.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#define SIZE MIB(200)
#define FORKS 5

static long rss(struct figures figures) {
    return figures.file + figures.anon + figures.shmem;
}

int main(void) {
    struct figures base = quiet("base"), parent, child;
    struct turn never = turn_new();
    pid_t pids[FORKS];
    long sum;

    write_pages(map_anon(SIZE), SIZE);
    parent = quiet("holding");
    for (int i = 0; i < FORKS; i++) {
        pids[i] = fork();
        REQUIRE(pids[i] >= 0);
        if (!pids[i]) {
            turn_take(never);
            _exit(1);
        }
        await_sleep(pids[i]);
    }
    EXPECT_NET(quiet("parent of five"), base, .anon = pages(SIZE));
    sum = rss(parent);
    for (int i = 0; i < FORKS; i++) {
        child = quiet_of(pids[i], "child");
        if (child.anon != parent.anon)
            fail("a child has %ld anon pages, its parent %ld", child.anon, parent.anon);
        sum += rss(child);
    }
    note("tree peak", 0, 0, sum);
    for (int i = 0; i < FORKS; i++) { /* killed, so that none runs and touches more */
        REQUIRE(!kill(pids[i], SIGKILL));
        await_end(pids[i], SIGKILL);
    }
    _exit(0);
}
