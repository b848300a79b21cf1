// SPDX-License-Identifier: MIT
/*
 * Private anonymous memory: read, written, given back in each of the ways there are, populated at
 * once.
 */
#include <sys/mman.h>

#include "oracle.h"
#include "region.h"

#define SIZE MIB(64)

int main(void) {
    struct figures base = quiet("base");
    char *memory = map_anon(SIZE);

    read_pages(memory, SIZE);
    EXPECT_NET(quiet("read"), base); /* the zero page, in no counter */

    write_pages(memory, SIZE);
    EXPECT_NET(quiet("written"), base, .anon = pages(SIZE));

    REQUIRE(!madvise(memory, SIZE, MADV_FREE));
    EXPECT_NET(quiet("freed"), base, .anon = pages(SIZE)); /* stays until the kernel wants it */

    REQUIRE(!madvise(memory, SIZE, MADV_DONTNEED));
    EXPECT_NET(quiet("not needed"), base);

    write_pages(memory, SIZE);
    EXPECT_NET(quiet("written again"), base, .anon = pages(SIZE));

    unmap(memory, SIZE);
    EXPECT_NET(quiet("unmapped"), base);

    memory =
        mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    EXPECT_NET(quiet("populated"), base, .anon = pages(SIZE));

    unmap(memory, SIZE);
    EXPECT_NET(quiet("end"), base);
    return 0;
}
