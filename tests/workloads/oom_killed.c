// SPDX-License-Identifier: MIT
/*
 * oom_killed GROUP: a child that outgrows its memory cgroup, limited to 64 MiB without swap, is
 * killed in the middle of a fault.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#define FITS MIB(48)
#define TOO_MUCH MIB(128)

static void join(const char *group) {
    char path[256];
    int fd;

    snprintf(path, sizeof(path), "%s/cgroup.procs", group);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        skip("%s: %s", path, strerror(errno));
    REQUIRE(write(fd, "0", 1) == 1);
    close(fd);
}

int main(int argc, char **argv) {
    struct figures base;
    pid_t child;

    if (argc < 2)
        fail("usage: oom_killed GROUP");
    base = quiet("base");
    child = fork();
    REQUIRE(child >= 0);
    if (!child) {
        struct figures before, now;
        char *memory;

        join(argv[1]);
        before = quiet("child");
        memory = map_anon(TOO_MUCH);
        write_pages(memory, FITS);
        now = quiet("within the limit");
        EXPECT_NET(now, before, .anon = pages(FITS));
        note("killed", 0, 0, now.file + now.anon + now.shmem);
        write_pages(memory, TOO_MUCH);
        fail("nothing stopped the child at its limit");
    }
    await_end(child, SIGKILL);
    EXPECT_NET(quiet("child killed"), base);
    return 0;
}
