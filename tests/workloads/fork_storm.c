// SPDX-License-Identifier: MIT
/*
 * One process holds 256 MiB while its parent forks and execs 256 times: nothing of that moves the
 * holder's figures.
 */
#include <string.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#define SIZE MIB(256)
#define FORKS 256

static void hold(struct turn holding, struct turn go) {
    struct figures held;

    write_pages(map_anon(SIZE), SIZE);
    held = quiet("holding");
    note("holding", 0, 0, held.file + held.anon + held.shmem);
    turn_give(holding);
    turn_take(go);
    EXPECT_NET(quiet("still holding"), held);
    note("held", 0, 0, held.file + held.anon + held.shmem);
    _exit(0);
}

int main(int argc, char **argv) {
    struct turn holding = turn_new(), go = turn_new();
    struct figures base;
    pid_t holder;

    if (argc > 1 && !strcmp(argv[1], "leave"))
        _exit(0);
    base = quiet("base");
    holder = fork();
    REQUIRE(holder >= 0);
    if (!holder)
        hold(holding, go);
    turn_take(holding);
    for (int count = 0; count < FORKS; count++) {
        pid_t pid = fork();

        REQUIRE(pid >= 0);
        if (!pid) {
            execv("/proc/self/exe", (char *const[]){argv[0], "leave", NULL});
            _exit(127);
        }
        await_end(pid, 0);
    }
    EXPECT_NET(quiet("storm over"), base);
    turn_give(go);
    await_end(holder, 0);
    return 0;
}
