// SPDX-License-Identifier: MIT
/*
 * sharers N ROUNDS exit|exec|both: in each round N processes share the address space of one that
 * holds 4 MiB, and all leave it at the same instant, but for one, which says so with a byte on
 * stdout and leaves when it reads one.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"

#define SIZE MIB(4)
#define STACK (16 << 10)

static volatile int *leave;
static char self[4096], how;

static void go(void) {
    if (how == 'b' ? getpid() & 1 : how == 'e')
        execl(self, self, NULL);
    _exit(0);
}

static int share(void *stays) {
    char byte = '.';

    while (!*leave)
        sched_yield();
    if (!stays)
        go();
    _exit(write(STDOUT_FILENO, &byte, 1) != 1 || read(STDIN_FILENO, &byte, 1) != 1);
}

int main(int argc, char **argv) {
    int n, rounds, status;

    if (argc == 1)
        return 0;
    REQUIRE(argc == 4);
    REQUIRE(readlink("/proc/self/exe", self, sizeof(self) - 1) > 0);
    n = atoi(argv[1]), rounds = atoi(argv[2]);
    how = !strcmp(argv[3], "exec") ? 'e' : argv[3][0] == 'b' ? 'b' : 'x';
    leave = (void *)map_shared_anon(sizeof(*leave));
    for (int round = 0; round < rounds; round++) {
        *leave = 0;
        pid_t pid = fork();

        REQUIRE(pid >= 0);
        if (!pid) {
            char *stacks = map_anon((size_t)n * STACK);

            write_pages(map_anon(SIZE), SIZE);
            for (int i = 0; i < n; i++)
                REQUIRE(clone(share, stacks + (size_t)(i + 1) * STACK,
                              CLONE_VM | CLONE_PARENT | SIGCHLD, i == n - 1 ? stacks : NULL) > 0);
            *leave = 1;
            go();
        }
        for (int i = 0; i <= n; i++) {
            REQUIRE(wait(&status) > 0);
            REQUIRE(!status);
        }
    }
    return 0;
}
