// SPDX-License-Identifier: MIT
/*
 * Huge pages of shared memory, where shmem_enabled lets MADV_HUGEPAGE have them; unmapped and
 * punched in part.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"

#define SIZE MIB(64)

int main(void) {
    size_t huge = huge_page_size(SIZE), page = (size_t)page_size(), gone;
    int fd = make_memfd(SIZE);
    struct figures base = quiet("base");
    char *around = mmap(NULL, SIZE + huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *memory = (char *)(((uintptr_t)around + huge - 1) & ~(uintptr_t)(huge - 1));

    REQUIRE(around != MAP_FAILED);
    REQUIRE(mmap(memory, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == memory);
    REQUIRE(!madvise(memory, SIZE, MADV_HUGEPAGE));
    write_steps(memory, SIZE, huge);
    if (mapped_huge(memory, SIZE, "ShmemPmdMapped:") != SIZE)
        skip("shared memory gets no huge pages here");
    EXPECT_NET(quiet("touched"), base, .shmem = pages(SIZE));

    /* file mappings are not split but dropped: what stays must be read again */
    unmap(memory + huge / 2, page);
    quiet("a page unmapped");
    read_pages(memory, huge / 2);
    read_pages(memory + huge / 2 + page, SIZE - huge / 2 - page);
    gone = page;
    EXPECT_NET(quiet("the rest read"), base, .shmem = pages(SIZE - gone));

    REQUIRE(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)huge, (off_t)huge));
    gone += huge;
    EXPECT_NET(quiet("a huge page punched out"), base, .shmem = pages(SIZE - gone));

    unmap(memory, huge / 2);
    unmap(memory + huge / 2 + page, SIZE - huge / 2 - page);
    EXPECT_NET(quiet("end"), base);
    return 0;
}
