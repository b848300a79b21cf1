// SPDX-License-Identifier: MIT
/*
 * turnover ROUNDS: writes 4 MiB and gives them back so many times, then holds 8 MiB at its end,
 * which is its peak.
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"

#define SIZE MIB(4)

int main(int argc, char **argv) {
    long rounds = argc > 1 ? atol(argv[1]) : 0;
    struct figures base = quiet("started");
    char *memory = map_anon(2 * SIZE);

    for (long i = 0; i < rounds; i++) {
        write_pages(memory, SIZE);
        REQUIRE(!madvise(memory, SIZE, MADV_DONTNEED));
    }
    write_pages(memory, 2 * SIZE);
    EXPECT_NET(quiet("held"), base, .anon = pages(2 * SIZE));
    _exit(0);
}
