// SPDX-License-Identifier: MIT
/*
 * sharing_groups GROUPS N: so many processes, one after the other, each of which holds 64 KiB and
 * has N others share its address space. When all are there it says so with a byte on stdout. When
 * it reads one, the first of each group ends, and another byte says that they have; the others end
 * when there is nothing to read any more, or by SIGTERM.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#define SIZE (64 << 10)
#define STACK (16 << 10)

static struct turn here, go, end;

static void leave(int signal) {
    (void)signal;
    _exit(0);
}

static int share(void *unused) {
    char token;

    (void)unused;
    _exit(read(end.fds[0], &token, 1) != 0);
}

static void lead(long n) {
    char *stacks = map_anon((size_t)n * STACK);

    close(end.fds[1]); /* or nobody's would ever be the last */
    signal(SIGTERM, leave);
    write_pages(map_anon(SIZE), SIZE);
    for (long i = 0; i < n; i++)
        REQUIRE(clone(share, stacks + (size_t)(i + 1) * STACK, CLONE_VM | CLONE_PARENT | SIGCHLD,
                      NULL) > 0);
    turn_give(here);
    turn_take(go);
    _exit(0);
}

int main(int argc, char **argv) {
    long groups = argc == 3 ? atol(argv[1]) : 0, n = groups ? atol(argv[2]) : 0;
    pid_t *leaders = calloc((size_t)groups + 1, sizeof(*leaders));
    char token;

    REQUIRE(groups > 0 && n > 0 && leaders);
    here = turn_new();
    go = turn_new();
    end = turn_new();
    for (long i = 0; i < groups; i++) {
        leaders[i] = fork();
        REQUIRE(leaders[i] >= 0);
        if (!leaders[i])
            lead(n);
        turn_take(here);
    }
    REQUIRE(write(STDOUT_FILENO, ".", 1) == 1);
    REQUIRE(read(STDIN_FILENO, &token, 1) == 1);
    for (long i = 0; i < groups; i++)
        turn_give(go);
    for (long i = 0; i < groups; i++)
        await_end(leaders[i], 0);
    REQUIRE(write(STDOUT_FILENO, ".", 1) == 1);
    REQUIRE(read(STDIN_FILENO, &token, 1) == 0);
    close(end.fds[1]);
    for (long i = 0; i < groups * n; i++)
        await_end(-1, 0);
    return 0;
}
