// SPDX-License-Identifier: MIT
/*
 * A child that touches 100 MiB and is gone a few milliseconds later: its peak is what its parent
 * had, copied, and 100.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#define SIZE MIB(100)

int main(void) {
    struct figures base;
    pid_t pid;

    quiet("base");
    base = quiet("base again");
    pid = fork();
    REQUIRE(pid >= 0);
    if (!pid) {
        mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        _exit(0);
    }
    await_end(pid, 0);
    note("anon peak", pid, 0, base.anon + pages(SIZE));
    return 0;
}
