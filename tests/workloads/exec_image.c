// SPDX-License-Identifier: MIT
/*
 * exec replaces the address space: in place, in a child, from a thread that is not the leader, with
 * a MiB of arguments. The pid stays, the old memory is gone, and the new image counts from its
 * first page.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#define SIZE MIB(64)
#define ARGUMENTS 16
#define ARGUMENT_BYTES \
    (64 * 1024) /* the kernel takes 128 KiB for one, and a quarter of the stack's limit for all */

static char argument[ARGUMENT_BYTES];

static void become_hold(void) {
    execv(workload_path("hold"), (char *const[]){"hold", "16", NULL});
    fail("execv: %s", strerror(errno));
}

static void become_hold_with_arguments(void) {
    char *argv[ARGUMENTS + 3] = {"hold", "16"};

    memset(argument, 'x', sizeof(argument) - 1);
    for (int i = 0; i < ARGUMENTS; i++)
        argv[2 + i] = argument;
    execv(workload_path("hold"), argv);
    fail("execv: %s", strerror(errno));
}

static void *exec_from_thread(void *unused) {
    (void)unused;
    become_hold();
    return NULL;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "place";
    struct figures base = quiet("base");
    pthread_t thread;
    pid_t pid;

    write_pages(map_anon(SIZE), SIZE);
    EXPECT_NET(quiet("old image"), base, .anon = pages(SIZE));
    execv("/nonexistent", argv); /* fails, and changes nothing */
    EXPECT_NET(quiet("exec failed"), base, .anon = pages(SIZE));

    if (!strcmp(mode, "place")) {
        become_hold();
    } else if (!strcmp(mode, "arguments")) {
        become_hold_with_arguments();
    } else if (!strcmp(mode, "thread")) {
        REQUIRE(!pthread_create(&thread, NULL, exec_from_thread, NULL));
        REQUIRE(!pthread_join(thread, NULL));
    } else if (!strcmp(mode, "child")) {
        pid = fork();
        REQUIRE(pid >= 0);
        if (!pid)
            become_hold();
        await_end(pid, 0);
        EXPECT_NET(quiet("child gone"), base, .anon = pages(SIZE));
        _exit(0);
    }
    fail("no mode %s", mode);
}
