// SPDX-License-Identifier: MIT
/*
 * limited GROUP FILE VALUE: in a memory cgroup, where others' need takes an idle process's pages: a
 * sibling's, when the limit is reached, and whoever asks for reclaim by writing VALUE to the
 * group's FILE. Nothing is lost: what is no longer resident is in swap.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#define OWNED MIB(32)
#define NEEDED MIB(48) /* of a limit of 64 */

static void write_to(const char *directory, const char *name, const char *value) {
    char path[256];
    int fd;

    snprintf(path, sizeof(path), "%s/%s", directory, name);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        skip("%s: %s", path, strerror(errno));
    if (write(fd, value, strlen(value)) != (ssize_t)strlen(value) &&
        errno != EAGAIN) /* less than asked for */
        fail("%s: %s", path, strerror(errno));
    close(fd);
}

static void expect_whole(struct figures now, struct figures base) {
    if (now.anon - base.anon + now.swap != pages(OWNED))
        fail("%ld resident and %ld in swap are not %ld", now.anon - base.anon, now.swap,
             pages(OWNED));
}

int main(int argc, char **argv) {
    struct turn go = turn_new(), done = turn_new();
    struct figures base, now;
    char *memory;
    pid_t child;

    if (argc < 4)
        fail("usage: limited GROUP FILE VALUE");
    write_to(argv[1], "cgroup.procs", "0");
    base = quiet("base");
    child = fork();
    REQUIRE(child >= 0);
    if (!child) {
        struct figures before;

        turn_take(go);
        before = quiet("sibling");
        write_pages(map_anon(NEEDED), NEEDED);
        now = quiet("sibling wrote");
        if (now.anon + now.swap != before.anon + before.swap + pages(NEEDED))
            fail("%ld resident and %ld in swap are not %ld more", now.anon, now.swap,
                 pages(NEEDED));
        turn_give(done);
        _exit(0);
    }
    memory = map_anon(OWNED);
    write_pages(memory, OWNED);
    expect_whole(quiet("owned"), base);
    turn_give(go);
    turn_take(done);
    await_end(child, 0);
    now = quiet("reclaimed by a sibling");
    expect_whole(now, base);
    if (!now.swap)
        skip("there is no swap space");

    write_to(argv[1], argv[2], argv[3]);
    now = quiet("reclaimed on request");
    expect_whole(now, base);
    read_pages(memory, OWNED);
    expect_whole(quiet("read again"), base);
    _exit(0);
}
