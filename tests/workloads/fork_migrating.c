// SPDX-License-Identifier: MIT
/*
 * Forks while the pages of huge pages are on the move: a child splits those that it shares with its parent, and the
 * parent forks meanwhile. With "zeros" most of them hold nothing, and newer kernels drop those on the way.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#define SIZE MIB(16)
#define ROUNDS 6
#define FORKS 6
#define SPLITTER "/sys/kernel/debug/split_huge_pages"

static bool split(const char *memory, size_t bytes)
{
    char range[96];
    int fd = open(SPLITTER, O_WRONLY | O_CLOEXEC), size;
    bool done;

    if (fd < 0)
        return false;
    size = snprintf(range, sizeof(range), "%d,0x%lx,0x%lx", getpid(), (uintptr_t)memory, (uintptr_t)memory + bytes);
    done = write(fd, range, (size_t)size) == size;
    close(fd);
    return done;
}

static void be_child(struct turn over)
{
    turn_take(over);
    quiet("forked meanwhile");
    _exit(0);
}

static void fork_meanwhile(const char *memory)
{
    struct turn go = turn_new(), over = turn_new();
    pid_t splitter = fork();

    REQUIRE(splitter >= 0);
    if (!splitter) {
        turn_give(go);
        REQUIRE(split(memory, SIZE));
        for (int count = 0; count < FORKS; count++)
            turn_give(over);
        quiet("split");
        _exit(0);
    }
    turn_take(go);
    for (int count = 0; count < FORKS; count++) {
        pid_t pid = fork();

        REQUIRE(pid >= 0);
        if (!pid)
            be_child(over);
    }
    for (int count = 0; count < FORKS + 1; count++)
        await_end(-1, 0);
}

int main(int argc, char **argv)
{
    bool zeros = argc > 1 && !strcmp(argv[1], "zeros");
    struct figures base = quiet("base");

    if (!split((const char *)&base, 1)) /* before 5.13 it takes no range of one process */
        skip("cannot write a range to %s: %s", SPLITTER, strerror(errno));
    for (int round = 0; round < ROUNDS; round++) {
        char *memory = map_aligned(SIZE, true);

        write_steps(memory, SIZE, zeros ? MIB(1) : (size_t)page_size());
        EXPECT_NET(quiet("written"), base, .anon = pages(SIZE));
        fork_meanwhile(memory);
        quiet("after the forks");
        unmap(memory, SIZE);
        EXPECT_NET(quiet("round over"), base);
    }
    return 0;
}
