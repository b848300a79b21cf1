// SPDX-License-Identifier: MIT
/*
 * hold MIB [ANYTHING...]: a command that holds so much anonymous memory at its end, which is its
 * peak.
 */
#include <stdlib.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"

int main(int argc, char **argv) {
    size_t size = MIB(argc > 1 ? strtoul(argv[1], NULL, 10) : 0);
    struct figures base = quiet("started");

    if (size)
        write_pages(map_anon(size), size);
    EXPECT_NET(quiet("held"), base, .anon = pages(size));
    _exit(0);
}
