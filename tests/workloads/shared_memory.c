// SPDX-License-Identifier: MIT
/*
 * Shared memory of every origin counts as shmem, whoever else maps it, and as nothing once
 * unmapped.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"

#define SIZE MIB(64)

/* include/uapi/linux/magic.h */
#define TMPFS_SUPER_MAGIC 0x01021994

static int make_tmpfs_file(void) {
    char path[] = "/dev/shm/memtrack-XXXXXX";
    struct statfs where;
    int fd = mkostemp(path, O_CLOEXEC);

    if (fd < 0)
        skip("/dev/shm: %s", strerror(errno));
    REQUIRE(!unlink(path) && !fstatfs(fd, &where) && !ftruncate(fd, SIZE));
    if (where.f_type != TMPFS_SUPER_MAGIC)
        skip("/dev/shm is no tmpfs");
    return fd;
}

static void fill_and_unmap(struct figures base, char *memory) {
    EXPECT_NET(quiet("mapped"), base);
    write_pages(memory, SIZE / 2);
    EXPECT_NET(quiet("half written"), base, .shmem = pages(SIZE / 2));
    write_pages(memory, SIZE);
    EXPECT_NET(quiet("written"), base, .shmem = pages(SIZE));
    unmap(memory, SIZE);
    EXPECT_NET(quiet("unmapped"), base); /* the memory is still there, and nobody's */
}

static void with_descriptor(struct figures base, int fd) {
    char *memory = map_file(fd, SIZE, true);

    fill_and_unmap(base, memory);
    memory = map_file(fd, SIZE, true);
    read_pages(memory, SIZE);
    EXPECT_NET(quiet("mapped again and read"), base, .shmem = pages(SIZE));
    unmap(memory, SIZE);

    memory = map_file(fd, SIZE, false);
    read_pages(memory, SIZE);
    EXPECT_NET(quiet("private, read"), base, .shmem = pages(SIZE));
    write_pages(memory, SIZE / 2);
    EXPECT_NET(quiet("private, half written"), base, .anon = pages(SIZE / 2),
               .shmem = pages(SIZE / 2));
    unmap(memory, SIZE);
    EXPECT_NET(quiet("end"), base);
    close(fd);
}

static void system_v(struct figures base) {
    int id = shmget(IPC_PRIVATE, SIZE, IPC_CREAT | 0600);
    char *memory;

    if (id < 0 && errno == ENOSYS)
        skip("the kernel has no System V shared memory");
    REQUIRE(id >= 0);
    memory = shmat(id, NULL, 0);
    REQUIRE(memory != (void *)-1);
    REQUIRE(!shmctl(id, IPC_RMID, NULL));
    write_pages(memory, SIZE);
    EXPECT_NET(quiet("written"), base, .shmem = pages(SIZE));
    REQUIRE(!shmdt(memory));
    EXPECT_NET(quiet("detached"), base);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "anon";
    struct figures base;
    int fd = -1;

    if (!strcmp(mode, "memfd"))
        fd = make_memfd(SIZE);
    else if (!strcmp(mode, "tmpfs"))
        fd = make_tmpfs_file();
    base = quiet("base");
    if (fd >= 0)
        with_descriptor(base, fd);
    else if (!strcmp(mode, "anon"))
        fill_and_unmap(base, map_shared_anon(SIZE));
    else if (!strcmp(mode, "sysv"))
        system_v(base);
    else
        fail("no mode %s", mode);
    return 0;
}
