// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"

/* include/uapi/linux/magic.h */
#define TMPFS_SUPER_MAGIC 0x01021994

#define WRITE_BYTES (64 * 1024)

static char *map(void *hint, size_t bytes, int flags, int fd) {
    char *start = mmap(hint, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);

    REQUIRE(start != MAP_FAILED);
    return start;
}

/* EINVAL is a kernel without transparent huge pages. */
void small_pages_only(char *start, size_t bytes) {
    REQUIRE(!madvise(start, bytes, MADV_NOHUGEPAGE) || errno == EINVAL);
}

char *map_anon(size_t bytes) {
    char *start = map(NULL, bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1);

    small_pages_only(start, bytes);
    return start;
}

char *map_shared_anon(size_t bytes) {
    char *start = map(NULL, bytes, MAP_SHARED | MAP_ANONYMOUS, -1);

    small_pages_only(start, bytes);
    return start;
}

char *map_file(int fd, size_t bytes, bool shared) {
    return map(NULL, bytes, shared ? MAP_SHARED : MAP_PRIVATE, fd);
}

char *map_aligned(size_t bytes, bool huge) {
    size_t align = huge_page_size(bytes);
    char *around = map(NULL, bytes + align, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    char *start = (char *)(((uintptr_t)around + align - 1) & ~(uintptr_t)(align - 1));

    if (start > around)
        unmap(around, (size_t)(start - around));
    if (start < around + align)
        unmap(start + bytes, (size_t)(around + align - start));
    REQUIRE(!madvise(start, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE));
    return start;
}

void unmap(void *start, size_t bytes) {
    REQUIRE(!munmap(start, bytes));
}

void write_steps(void *start, size_t bytes, size_t step) {
    for (size_t at = 0; at < bytes; at += step)
        *(volatile size_t *)((char *)start + at) = (uintptr_t)start + at;
}

void write_pages(void *start, size_t bytes) {
    write_steps(start, bytes, (size_t)page_size());
}

void read_pages(const void *start, size_t bytes) {
    for (size_t at = 0; at < bytes; at += (size_t)page_size())
        (void)*((const volatile char *)start + at);
}

static void fill(int fd, size_t bytes) {
    static char block[WRITE_BYTES];

    for (size_t at = 0; at < bytes; at += sizeof(block)) {
        memset(block, (int)(1 + at / sizeof(block) % 255), sizeof(block));
        REQUIRE(write(fd, block, sizeof(block)) == (ssize_t)sizeof(block));
    }
}

int make_file(size_t bytes) {
    const char *directory = getenv("MEMTRACK_FILE_DIR");
    char path[256];
    struct statfs where;
    int fd;

    snprintf(path, sizeof(path), "%s/memtrack-XXXXXX", directory ? directory : "/var/tmp");
    fd = mkostemp(path, O_CLOEXEC);
    REQUIRE(fd >= 0);
    REQUIRE(!unlink(path));
    REQUIRE(!fstatfs(fd, &where));
    if (where.f_type == TMPFS_SUPER_MAGIC)
        skip("%s is on tmpfs, whose pages are no file pages", path);
    fill(fd, bytes);
    return fd;
}

int make_memfd(size_t bytes) {
    int fd = memfd_create("memtrack", MFD_CLOEXEC);

    REQUIRE(fd >= 0);
    REQUIRE(!ftruncate(fd, (off_t)bytes));
    return fd;
}

size_t huge_page_size(size_t bytes) {
    unsigned long size = 0;
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "re");

    if (!file)
        skip("the kernel has no transparent huge pages");
    if (fscanf(file, "%lu", &size) != 1)
        fail("cannot read the size of a huge page");
    fclose(file);
    if (bytes % size)
        skip("a huge page is %lu MiB here", size >> 20);
    return size;
}

size_t mapped_huge(const void *start, size_t bytes, const char *field) {
    uintptr_t low = (uintptr_t)start, from = 0, to = 0;
    size_t total_kib = 0, kib;
    char line[512];
    FILE *smaps = fopen("/proc/self/smaps", "re");

    REQUIRE(smaps);
    while (fgets(line, sizeof(line), smaps)) {
        size_t length = strlen(field);

        if (*line >= 'A' && *line <= 'Z') {
            if (from < low + bytes && to > low && !strncmp(line, field, length) &&
                sscanf(line + length, "%zu kB", &kib) == 1)
                total_kib += kib;
        } else if (sscanf(line, "%lx-%lx", &from, &to) != 2) {
            from = to = 0;
        }
    }
    fclose(smaps);
    return total_kib << 10;
}
