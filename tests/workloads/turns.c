// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "oracle.h"
#include "procfs.h"
#include "turns.h"

#define POLL_NS 1000000

extern char **environ;

struct turn turn_new(void) {
    struct turn turn;

    REQUIRE(!pipe(turn.fds));
    return turn;
}

void turn_give(struct turn turn) {
    REQUIRE(write(turn.fds[1], "", 1) == 1);
}

void turn_take(struct turn turn) {
    char token;

    REQUIRE(read(turn.fds[0], &token, 1) == 1);
}

/* The field after the name in parentheses, which may hold anything. */
static char state_of(pid_t pid) {
    char text[256], *end;

    read_of(pid, "stat", text, sizeof(text));
    end = strrchr(text, ')');
    REQUIRE(end);
    return end[2];
}

void await_sleep(pid_t pid) {
    const struct timespec pause = {.tv_nsec = POLL_NS};

    while (!strchr("St", state_of(pid)))
        nanosleep(&pause, NULL);
}

void await_end(pid_t pid, int wait_status) {
    int status;
    pid_t ended;

    do
        ended = waitpid(pid, &status, __WALL);
    while (ended < 0 && errno == EINTR);
    REQUIRE(ended > 0 && (pid < 0 || ended == pid));
    if (status != wait_status)
        fail("process %d ended with wait status %#x, not %#x", pid, status, wait_status);
}

char *workload_path(const char *name) {
    static char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
    char *slash;

    REQUIRE(length > 0);
    path[length] = '\0';
    slash = strrchr(path, '/');
    REQUIRE(slash && (size_t)(slash - path) + 1 + strlen(name) < sizeof(path));
    strcpy(slash + 1, name);
    return path;
}

pid_t spawn_workload(const char *name, char *const argv[]) {
    pid_t pid;

    errno = posix_spawn(&pid, workload_path(name), NULL, NULL, argv, environ);
    REQUIRE(!errno);
    return pid;
}
