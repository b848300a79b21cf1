// SPDX-License-Identifier: MIT
/*
 * Two processes on one address space (CLONE_VM without CLONE_THREAD); one of them exits, or execs,
 * before the other. The memory stays counted, once, under whichever is left.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#define SIZE MIB(64)
#define STACK MIB(1)

static struct figures base;
static char *memory;
static struct turn second_go, first_go;
static pid_t first;

static void be_second_and_leave(void) {
    shown_as(first);
    write_pages(memory, SIZE);
    EXPECT_NET(quiet("second wrote"), base, .anon = pages(SIZE + STACK));
    shown_as(0);
}

static int second_leaves(void *unused) {
    (void)unused;
    be_second_and_leave();
    _exit(0);
}

static int second_execs(void *unused) {
    (void)unused;
    be_second_and_leave();
    execv(workload_path("hold"), (char *const[]){"hold", "8", NULL});
    _exit(127);
}

static int second_stays(void *unused) {
    (void)unused;
    be_second_and_leave();
    turn_give(first_go);
    turn_take(second_go); /* given when the first is gone */
    EXPECT_NET(quiet("second alone"), base, .anon = pages(SIZE + STACK));
    unmap(memory, SIZE / 2);
    EXPECT_NET(quiet("second unmapped half"), base, .anon = pages(SIZE / 2 + STACK));
    _exit(0);
}

static void be_first(const char *mode) {
    char *stack;
    pid_t second;
    int (*entry)(void *) = second_stays;

    first = getpid();
    settle();
    base = quiet("base");
    stack = map_anon(STACK);
    write_pages(stack, STACK);
    memory = map_anon(SIZE);
    write_pages(memory, SIZE / 2);
    EXPECT_NET(quiet("first wrote half"), base, .anon = pages(SIZE / 2 + STACK));
    if (!strcmp(mode, "second leaves"))
        entry = second_leaves;
    else if (!strcmp(mode, "second execs"))
        entry = second_execs;
    second = clone(entry, stack + STACK, CLONE_VM | SIGCHLD, NULL);
    REQUIRE(second > 0);
    if (entry == second_stays) {
        turn_take(first_go);
        if (!strcmp(mode, "first execs"))
            execv(workload_path("hold"), (char *const[]){"hold", "8", NULL});
        _exit(0);
    }
    await_end(second, 0);
    EXPECT_NET(quiet("second gone"), base, .anon = pages(SIZE + STACK));
    unmap(memory, SIZE);
    EXPECT_NET(quiet("end"), base, .anon = pages(STACK));
    _exit(0);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "first leaves";
    struct figures before = quiet("root");
    pid_t pid;

    first_go = turn_new();
    second_go = turn_new();
    REQUIRE(!prctl(PR_SET_CHILD_SUBREAPER, 1)); /* the second outlives its parent */
    pid = fork();
    REQUIRE(pid >= 0);
    if (!pid)
        be_first(mode);
    await_end(pid, 0);
    if (!strncmp(mode, "first", 5)) {
        turn_give(second_go);
        await_end(-1, 0);
    }
    EXPECT_NET(quiet("end"), before);
    return 0;
}
