// SPDX-License-Identifier: MIT
/*
 * Memory that its own process pages out, reads back, hands to a child while it is out, and drops
 * while it is out.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

#define SIZE MIB(64)

/*
 * What cannot be isolated just then (in another CPU's batch) stays: all but a sixteenth must go,
 * and none be lost.
 */
static void expect_out(struct figures now, struct figures base) {
    if (now.anon - base.anon + now.swap != pages(SIZE))
        fail("%ld resident and %ld in swap are not %ld", now.anon - base.anon, now.swap,
             pages(SIZE));
    if (now.swap < pages(SIZE - SIZE / 16))
        fail("only %ld of %ld pages went to swap", now.swap, pages(SIZE));
}

static void page_out(char *memory) {
    if (madvise(memory, SIZE, MADV_PAGEOUT)) {
        if (errno == EINVAL)
            skip("the kernel has no MADV_PAGEOUT");
        fail("MADV_PAGEOUT: %s", strerror(errno));
    }
}

static void page_out_anon(struct figures base) {
    char *memory = map_anon(SIZE);
    struct figures out, child;
    pid_t pid;

    write_pages(memory, SIZE);
    EXPECT_NET(quiet("written"), base, .anon = pages(SIZE));
    page_out(memory);
    out = quiet("out");
    if (!out.swap)
        skip("there is no swap space");
    expect_out(out, base);

    pid = fork();
    REQUIRE(pid >= 0);
    if (!pid) {
        child = quiet("child");
        if (child.anon != out.anon || child.swap != out.swap)
            fail("the child has %ld anon and %ld in swap, not %ld and %ld", child.anon, child.swap,
                 out.anon, out.swap);
        read_pages(memory, SIZE);
        child = quiet("child read it in");
        if (child.anon != base.anon + pages(SIZE) || child.swap)
            fail("the child has %ld anon and %ld in swap after reading", child.anon, child.swap);
        _exit(0);
    }
    await_end(pid, 0);
    quiet("child gone");

    read_pages(memory, SIZE);
    EXPECT_NET(quiet("in"), base, .anon = pages(SIZE));
    write_pages(memory, SIZE);
    EXPECT_NET(quiet("written again"), base, .anon = pages(SIZE));
    page_out(memory);
    expect_out(quiet("out again"), base);
    unmap(memory, SIZE);
    EXPECT_NET(quiet("end"), base);
}

/* Shared memory goes out of the address space altogether: the swap entries are the file's. */
static void page_out_shmem(struct figures base) {
    char *memory = map_shared_anon(SIZE);
    struct figures out;

    write_pages(memory, SIZE);
    EXPECT_NET(quiet("written"), base, .shmem = pages(SIZE));
    page_out(memory);
    out = quiet("out");
    if (out.shmem == base.shmem + pages(SIZE))
        skip("there is no swap space");
    if (out.shmem > pages(SIZE / 16) || out.swap)
        fail("%ld of %ld pages stayed, %ld went to swap", out.shmem, pages(SIZE), out.swap);
    read_pages(memory, SIZE);
    EXPECT_NET(quiet("in"), base, .shmem = pages(SIZE));
    unmap(memory, SIZE);
    EXPECT_NET(quiet("end"), base);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "anon";
    struct figures base = quiet("base");

    if (!strcmp(mode, "anon"))
        page_out_anon(base);
    else if (!strcmp(mode, "shmem"))
        page_out_shmem(base);
    else
        fail("no mode %s", mode);
    return 0;
}
