// SPDX-License-Identifier: MIT
/* The leader's exit is not the process's: workers go on to allocate, and one of them forks. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#define SIZE MIB(64)
#define POLL_NS 1000000

static struct figures base;

static void await_leader_gone(void) {
    const struct timespec pause = {.tv_nsec = POLL_NS};
    char path[64], line[128] = "";

    snprintf(path, sizeof(path), "/proc/self/task/%d/status", getpid());
    while (!strstr(line, "(zombie)")) {
        FILE *status = fopen(path, "re");

        REQUIRE(status);
        REQUIRE(fgets(line, sizeof(line), status)); /* Name: */
        while (fgets(line, sizeof(line), status) && strncmp(line, "State:", 6) != 0)
            ;
        fclose(status);
        nanosleep(&pause, NULL);
    }
}

static void *outlive_leader(void *unused) {
    char *memory = map_anon(SIZE);
    struct figures before, child;
    struct turn go = turn_new();
    pid_t pid;

    (void)unused;
    await_leader_gone();
    before = quiet("leader gone");
    write_pages(memory, SIZE);
    EXPECT_NET(quiet("worker wrote"), before, .anon = pages(SIZE));
    pid = fork();
    REQUIRE(pid >= 0);
    if (!pid) {
        turn_take(go);
        child = quiet("child of a worker");
        if (child.anon != before.anon + pages(SIZE))
            fail("the child has %ld anon pages", child.anon);
        unmap(memory, SIZE);
        quiet("child unmapped");
        _exit(0);
    }
    turn_give(go);
    await_end(pid, 0);
    EXPECT_NET(quiet("child gone"), before, .anon = pages(SIZE));
    note("exit", 0, 0, before.file + before.anon + before.shmem + pages(SIZE));
    _exit(0);
}

static void *sleep_on(void *unused) {
    (void)unused;
    pause();
    return NULL;
}

int main(void) {
    pthread_t worker, sleeper;

    base = quiet("base");
    REQUIRE(!pthread_create(&sleeper, NULL, sleep_on, NULL));
    REQUIRE(!pthread_create(&worker, NULL, outlive_leader, NULL));
    syscall(SYS_exit, 0); /* this thread alone */
    return 1;
}
