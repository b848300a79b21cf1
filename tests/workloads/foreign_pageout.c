// SPDX-License-Identifier: MIT
/*
 * A child pages out its parent's memory by process_madvise: the parent's figures fall, the child
 * acted.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

#define SIZE MIB(64)

/*
 * The child is forked before the memory is there: pages that two processes map are not paged out.
 */
static void be_child(pid_t parent, const int *addresses, struct turn done) {
    struct iovec range = {.iov_len = SIZE};
    int pidfd = (int)syscall(SYS_pidfd_open, parent, 0);

    if (pidfd < 0 ||
        read(addresses[0], &range.iov_base, sizeof(range.iov_base)) != sizeof(range.iov_base))
        _exit(errno);
    for (size_t left = SIZE; left;) { /* a call may stop early */
        ssize_t did = syscall(SYS_process_madvise, pidfd, &range, 1, MADV_PAGEOUT, 0);

        if (did <= 0)
            _exit(errno);
        left -= (size_t)did;
        range.iov_base = (char *)range.iov_base + did;
        range.iov_len = left;
    }
    turn_give(done);
    pause(); /* alive, so that its tid is its own, until its parent has looked */
}

/* All but what cannot be isolated just then, at most a sixteenth, must go. */
static void expect_gone(long left) {
    if (left > pages(SIZE / 16))
        fail("%ld of %ld pages stayed", left, pages(SIZE));
}

int main(int argc, char **argv) {
    bool filed = argc > 1 && !strcmp(argv[1], "file");
    int fd = filed ? make_file(SIZE) : -1;
    struct figures base = quiet("base"), now;
    struct turn done = turn_new();
    pid_t parent = getpid(), child;
    int addresses[2];
    char *memory;

    REQUIRE(!pipe(addresses));
    child = fork();
    REQUIRE(child >= 0);
    if (!child)
        be_child(parent, addresses, done);
    if (filed) {
        REQUIRE(!fsync(fd)); /* only clean pages go at once */
        memory = map_file(fd, SIZE, false);
        read_pages(memory, SIZE);
        EXPECT_NET(quiet("read"), base, .file = pages(SIZE));
    } else {
        memory = map_anon(SIZE);
        write_pages(memory, SIZE);
        EXPECT_NET(quiet("written"), base, .anon = pages(SIZE));
    }
    note("acted on by", child, (uintptr_t)memory, pages(SIZE));
    REQUIRE(write(addresses[1], &memory, sizeof(memory)) == sizeof(memory));
    turn_take(done);
    /* Before we act ourselves: what we look with may have gone too. */
    note("acted", child, (uintptr_t)memory, pages(SIZE));
    now = quiet("paged out");
    REQUIRE(!kill(child, SIGKILL));
    await_end(child, SIGKILL);
    if (filed) {
        if (now.file == base.file + pages(SIZE))
            skip("nothing of this file system is paged out");
        expect_gone(now.file - base.file);
    } else {
        if (!now.swap)
            skip("there is no swap space");
        if (now.anon - base.anon + now.swap != pages(SIZE))
            fail("%ld resident and %ld in swap are not %ld", now.anon - base.anon, now.swap,
                 pages(SIZE));
        expect_gone(now.anon - base.anon);
    }
    _exit(0);
}
