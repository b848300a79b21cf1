// SPDX-License-Identifier: MIT
/* The program break moved up and down, and a stack that grows by use. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"

#define HEAP MIB(32)
#define STACK MIB(4) /* of the 8 that are usual */

/* Not inlined, so that the frame is there during the call only. */
__attribute__((noinline)) static void use_stack(void) {
    volatile char frame[STACK];

    for (size_t at = sizeof(frame); at; at -= (size_t)page_size())
        frame[at - 1] = 1;
}

int main(void) {
    struct figures base = quiet("base"), after;
    size_t page = (size_t)page_size();
    char *end = sbrk(0), *heap;
    size_t slack = (page - (size_t)end % page) % page;

    REQUIRE(sbrk((intptr_t)(HEAP + slack)) != (void *)-1);
    heap = end + slack;
    madvise(heap, HEAP, MADV_NOHUGEPAGE);
    write_pages(heap, HEAP);
    EXPECT_NET(quiet("heap written"), base, .anon = pages(HEAP));
    REQUIRE(sbrk(-(intptr_t)(HEAP / 2)) != (void *)-1);
    EXPECT_NET(quiet("half the heap given back"), base, .anon = pages(HEAP / 2));
    REQUIRE(!brk(end));
    EXPECT_NET(quiet("heap given back"), base);

    use_stack();
    after = quiet("stack used"); /* and kept */
    if (after.anon < base.anon + pages(STACK - MIB(1)) || after.anon > base.anon + pages(STACK))
        fail("the stack grew by %ld pages", after.anon - base.anon);
    return 0;
}
