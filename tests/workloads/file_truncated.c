// SPDX-License-Identifier: MIT
/*
 * A file cut short or punched under a mapping takes the mapped pages with it; done by the process
 * and by its child.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#define SIZE MIB(64)

static void expect(const char *point, struct figures base, size_t left, bool shmem) {
    struct figures now = quiet(point);

    if (shmem)
        EXPECT_NET(now, base, .shmem = pages(left));
    else
        EXPECT_NET(now, base, .file = pages(left));
}

static void truncate_it(struct figures base, int fd, bool shmem) {
    char *memory = map_file(fd, SIZE, true);
    pid_t pid;

    read_pages(memory, SIZE);
    expect("read", base, SIZE, shmem);
    REQUIRE(!ftruncate(fd, SIZE / 2));
    expect("cut to half", base, SIZE / 2, shmem);
    pid = fork();
    REQUIRE(pid >= 0);
    if (!pid)
        _exit(ftruncate(fd, SIZE / 4) ? 1 : 0);
    await_end(pid, 0);
    expect("cut to a quarter by a child", base, SIZE / 4, shmem);
    unmap(memory, SIZE);
    expect("end", base, 0, shmem);
}

static void punch_it(struct figures base, int fd, bool shmem) {
    char *memory = map_file(fd, SIZE, true);

    read_pages(memory, SIZE);
    expect("read", base, SIZE, shmem);
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, SIZE / 4, SIZE / 2)) {
        if (errno == EOPNOTSUPP)
            skip("this file system has no holes");
        fail("fallocate: %s", strerror(errno));
    }
    expect("half punched out", base, SIZE / 2, shmem);
    read_pages(memory, SIZE); /* zeroes, in pages again */
    expect("read again", base, SIZE, shmem);
    REQUIRE(!madvise(memory, SIZE / 4, MADV_REMOVE));
    expect("a quarter removed", base, SIZE - SIZE / 4, shmem);
    unmap(memory, SIZE);
    expect("end", base, 0, shmem);
}

/* The pages that a private mapping copied go with the file's end as well, but survive a hole. */
static void copied(struct figures base, int fd, bool shmem) {
    char *memory = map_file(fd, SIZE, false);

    write_pages(memory, SIZE);
    EXPECT_NET(quiet("copied"), base, .anon = pages(SIZE));
    if (!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, SIZE / 2))
        EXPECT_NET(quiet("half punched out"), base, .anon = pages(SIZE));
    REQUIRE(!ftruncate(fd, SIZE / 2));
    EXPECT_NET(quiet("cut to half"), base, .anon = pages(SIZE / 2));
    unmap(memory, SIZE);
    expect("end", base, 0, shmem);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "truncate";
    bool shmem = argc > 2 && !strcmp(argv[2], "shmem");
    int fd = shmem ? make_memfd(SIZE) : make_file(SIZE);
    struct figures base = quiet("base");

    if (!strcmp(mode, "truncate"))
        truncate_it(base, fd, shmem);
    else if (!strcmp(mode, "punch"))
        punch_it(base, fd, shmem);
    else if (!strcmp(mode, "copied"))
        copied(base, fd, shmem);
    else
        fail("no mode %s", mode);
    close(fd);
    return 0;
}
