// SPDX-License-Identifier: MIT
/*
 * Whoever has spawned a process ends as soon as it may, which is before the exec is done: nothing
 * passes on to the other.
 */
#define _GNU_SOURCE
#include <sys/prctl.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#define SIZE MIB(64)
#define TURNS 10 /* one is seldom enough to fall between the two */

int main(void) {
    pid_t pid;

    REQUIRE(!prctl(PR_SET_CHILD_SUBREAPER, 1));
    for (int turn = 0; turn < TURNS; turn++) {
        pid = fork();
        REQUIRE(pid >= 0);
        if (!pid) {
            write_pages(map_anon(SIZE), SIZE);
            spawn_workload("hold", (char *const[]){"hold", "4", NULL});
            _exit(0);
        }
        await_end(-1, 0);
        await_end(-1, 0);
    }
    return 0;
}
