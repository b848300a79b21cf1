// SPDX-License-Identifier: MIT
/*
 * A child of vfork that touches memory before it leaves: it is its parent's memory, counted once,
 * under the parent.
 */
#define _GNU_SOURCE
#include <sys/wait.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#define SIZE MIB(64)

int main(void) {
    struct figures base = quiet("base");
    char *memory = map_anon(SIZE);
    pid_t parent = getpid();
    volatile pid_t pid;

    write_pages(memory, SIZE / 2);
    EXPECT_NET(quiet("parent wrote half"), base, .anon = pages(SIZE / 2));
    pid = vfork();
    REQUIRE(pid >= 0);
    if (!pid) {
        write_pages(memory, SIZE);
        shown_as(parent);
        EXPECT_NET(quiet("child wrote the rest"), base, .anon = pages(SIZE));
        shown_as(0);
        _exit(0);
    }
    await_end(pid, 0);
    EXPECT_NET(quiet("child gone"), base, .anon = pages(SIZE));
    unmap(memory, SIZE);
    EXPECT_NET(quiet("end"), base);
    return 0;
}
