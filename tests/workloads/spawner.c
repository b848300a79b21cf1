// SPDX-License-Identifier: MIT
/*
 * A process holding 200 MiB starts a small command: sharing its memory until exec (vfork,
 * posix_spawn), or with a copy of it (fork).
 */
#define _GNU_SOURCE
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#define SIZE MIB(200)
#define COMMANDS 4

static char *const small[] = {"hold", "4", NULL};

static pid_t start(const char *mode) {
    char *path = workload_path("hold");
    pid_t pid;

    if (!strcmp(mode, "spawn"))
        return spawn_workload("hold", small);
    if (!strcmp(mode, "vfork"))
        pid = vfork();
    else
        pid = fork();
    if (!pid) {
        execv(path, small);
        _exit(127);
    }
    REQUIRE(pid > 0);
    return pid;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "spawn";
    struct figures base = quiet("base");

    write_pages(map_anon(SIZE), SIZE);
    quiet("holding");
    for (int count = 0; count < COMMANDS; count++) {
        await_end(start(mode), 0);
        EXPECT_NET(quiet("command ended"), base, .anon = pages(SIZE));
    }
    _exit(0);
}
