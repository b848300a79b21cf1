// SPDX-License-Identifier: MIT
/*
 * Ten children, one after the other, of a process that holds 50 MiB: each gives its copy back at
 * once and lives on. The tree never holds more than two of them.
 */
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#define SIZE MIB(50)
#define CHILDREN 10

int main(void) {
    struct turn given_back = turn_new(), leave = turn_new();
    char *memory = map_anon(SIZE);

    write_pages(memory, SIZE);
    for (int i = 0; i < CHILDREN; i++) {
        pid_t pid = fork();

        REQUIRE(pid >= 0);
        if (!pid) {
            unmap(memory, SIZE);
            turn_give(given_back);
            turn_take(leave);
            _exit(0);
        }
        turn_take(given_back);
    }
    for (int i = 0; i < CHILDREN; i++)
        turn_give(leave);
    for (int i = 0; i < CHILDREN; i++)
        await_end(-1, 0);
    return 0;
}
