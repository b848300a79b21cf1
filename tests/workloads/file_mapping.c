// SPDX-License-Identifier: MIT
/*
 * File pages: a private mapping read, then half of it copied by writing; a shared one read and
 * written.
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"

#define SIZE MIB(64)

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "private";
    int fd = make_file(SIZE);
    struct figures base = quiet("base");
    char *memory;

    if (!strcmp(mode, "private")) {
        memory = map_file(fd, SIZE, false);
        read_pages(memory, SIZE);
        EXPECT_NET(quiet("read"), base, .file = pages(SIZE));
        write_pages(memory, SIZE / 2);
        EXPECT_NET(quiet("half written"), base, .file = pages(SIZE / 2), .anon = pages(SIZE / 2));
        REQUIRE(!madvise(memory, SIZE, MADV_DONTNEED));
        EXPECT_NET(quiet("not needed"), base);
        write_pages(memory, SIZE / 2); /* copied at once, never mapped */
        EXPECT_NET(quiet("half written at once"), base, .anon = pages(SIZE / 2));
    } else if (!strcmp(mode, "shared")) {
        memory = map_file(fd, SIZE, true);
        write_pages(memory, SIZE / 2);
        EXPECT_NET(quiet("half written"), base, .file = pages(SIZE / 2));
        read_pages(memory, SIZE);
        EXPECT_NET(quiet("read"), base, .file = pages(SIZE));
        REQUIRE(!msync(memory, SIZE, MS_SYNC));
        EXPECT_NET(quiet("synced"), base, .file = pages(SIZE));
        write_pages(memory, SIZE); /* dirty when it goes: removal comes late, with the TLB flush */
    } else {
        fail("no mode %s", mode);
    }
    unmap(memory, SIZE);
    EXPECT_NET(quiet("end"), base);
    close(fd);
    return 0;
}
