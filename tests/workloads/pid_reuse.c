// SPDX-License-Identifier: MIT
/* Two processes that have one pid, one after the other: two processes, never one. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

static pid_t fork_as(pid_t pid) {
    struct clone_args args = {
        .exit_signal = SIGCHLD,
        .set_tid = (uintptr_t)&pid,
        .set_tid_size = 1,
    };

    return (pid_t)syscall(SYS_clone3, &args, sizeof(args));
}

static void be_child(const char *point, size_t size) {
    struct figures before = quiet("child");

    write_pages(map_anon(size), size);
    EXPECT_NET(quiet(point), before, .anon = pages(size));
    _exit(0);
}

int main(void) {
    pid_t first, second;

    quiet("base");
    first = fork();
    REQUIRE(first >= 0);
    if (!first)
        be_child("first held", MIB(32));
    await_end(first, 0);
    second = fork_as(first);
    if (second < 0)
        skip("cannot choose a child's pid: %s", strerror(errno));
    if (!second)
        be_child("second held", MIB(16));
    REQUIRE(second == first);
    await_end(second, 0);
    quiet("end");
    return 0;
}
