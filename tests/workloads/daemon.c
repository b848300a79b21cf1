// SPDX-License-Identifier: MIT
/*
 * A daemon by double fork and setsid, whose parent and grandparent it no longer has: still of the
 * tree.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#define SIZE MIB(32)

static void be_daemon(struct turn orphaned, struct turn done) {
    struct figures before;

    turn_take(orphaned);
    before = quiet("orphaned");
    write_pages(map_anon(SIZE), SIZE);
    EXPECT_NET(quiet("daemon wrote"), before, .anon = pages(SIZE));
    note("daemon", 0, 0, pages(SIZE));
    turn_give(done);
    _exit(0);
}

int main(void) {
    struct turn orphaned = turn_new(), done = turn_new();
    char token;
    pid_t pid;

    quiet("base");
    pid = fork();
    REQUIRE(pid >= 0);
    if (!pid) {
        REQUIRE(setsid() > 0);
        pid = fork();
        REQUIRE(pid >= 0);
        if (!pid)
            be_daemon(orphaned, done);
        _exit(0);
    }
    await_end(pid, 0);
    turn_give(orphaned);
    turn_take(done);
    REQUIRE(!close(done.fds[1]));
    REQUIRE(!read(done.fds[0], &token, 1)); /* nobody has the other side: the daemon is no more */
    return 0;
}
