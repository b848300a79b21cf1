// SPDX-License-Identifier: MIT
/*
 * storm WORKERS ROUNDS exec|exit: so many processes at once, each of which forks so many children,
 * one or a few at a time; a child touches 200 KiB and ends, or runs this program anew, which ends.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"

#define SIZE (200 << 10)
#define AT_ONCE 3

static char self[4096];

static void live(bool exec) {
    write_pages(map_anon(SIZE), SIZE);
    if (exec)
        execl(self, self, NULL);
    _exit(exec);
}

static void work(long rounds, bool exec) {
    for (long round = 0; round < rounds; round++) {
        pid_t pid = fork();

        REQUIRE(pid >= 0);
        if (!pid)
            live(exec);
        if (round % AT_ONCE == 0)
            while (wait(NULL) > 0)
                ;
    }
    while (wait(NULL) > 0)
        ;
    _exit(0);
}

int main(int argc, char **argv) {
    int status, failed = 0;

    if (argc == 1)
        return 0;
    REQUIRE(argc == 4);
    REQUIRE(readlink("/proc/self/exe", self, sizeof(self) - 1) > 0);
    for (long worker = 0; worker < atol(argv[1]); worker++) {
        pid_t pid = fork();

        REQUIRE(pid >= 0);
        if (!pid)
            work(atol(argv[2]), !strcmp(argv[3], "exec"));
    }
    while (wait(&status) > 0)
        failed |= status;
    return !!failed;
}
