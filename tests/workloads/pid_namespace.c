// SPDX-License-Identifier: MIT
/*
 * Processes in a pid namespace of their own: the figures are the same, the pids those of whoever
 * mounted /proc.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#define SIZE MIB(32)

static void be_grandchild(void) {
    struct figures before = quiet("grandchild");

    write_pages(map_anon(SIZE), SIZE);
    EXPECT_NET(quiet("grandchild wrote"), before, .anon = pages(SIZE));
    _exit(0);
}

int main(void) {
    struct figures before;
    pid_t pid;

    quiet("base");
    if (unshare(CLONE_NEWPID))
        skip("cannot make a pid namespace: %s", strerror(errno));
    pid = fork();
    REQUIRE(pid >= 0);
    if (!pid) {
        REQUIRE(getpid() == 1);
        before = quiet("first of its namespace");
        write_pages(map_anon(SIZE / 2), SIZE / 2);
        EXPECT_NET(quiet("first wrote"), before, .anon = pages(SIZE / 2));
        pid = fork();
        REQUIRE(pid >= 0);
        if (!pid)
            be_grandchild();
        await_end(pid, 0);
        EXPECT_NET(quiet("first again"), before, .anon = pages(SIZE / 2));
        _exit(0);
    }
    await_end(pid, 0);
    quiet("end");
    return 0;
}
