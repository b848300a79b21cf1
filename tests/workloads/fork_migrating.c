// SPDX-License-Identifier: MIT
/*
 * Forks while the pages of huge pages are on the move: a child splits those that it shares with its
 * parent, and the parent forks meanwhile. With "zeros" most of them hold nothing, and newer kernels
 * drop those on the way.
 *
 * That a fork has met such pages shows in the kernel's own counts. Each migration entry that the
 * kernel makes is taken back once, but for those that a fork has copied: so many more are taken
 * back than were made.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#define SIZE MIB(16)
#define ROUNDS 6
#define ROUNDS_MAX 60
#define FORKS 6
#define SPLITTER "/sys/kernel/debug/split_huge_pages"

/* Tracepoints of the kernel, as perf counts them on each CPU. */
#define TRACEPOINTS "/sys/kernel/tracing/events/migrate"
#define PROCESSORS_MAX 256

/* Documentation/admin-guide/mm/pagemap.rst. A page on the move shows as one in swap. */
#define PAGEMAP_SWAP (1ULL << 62)
#define PAGEMAP_PFN ((1ULL << 55) - 1)

static const char *const names[] = {"remove_migration_pte", "set_migration_pte"};
static int counts[2][PROCESSORS_MAX];
static long processors;
/* pages of zeros, by all processes; what a child drops before it first looks is not in it */
static long *dropped;
static uint64_t zero_frame;

static long number_in(const char *path, const char *after) {
    char line[128];
    long number = -1;
    FILE *file = fopen(path, "re");

    while (number < 0 && file && fgets(line, sizeof(line), file))
        if (!strncmp(line, after, strlen(after)))
            number = strtol(line + strlen(after), NULL, 10);
    if (file)
        fclose(file);
    return number;
}

static bool count_entries(void) {
    processors = sysconf(_SC_NPROCESSORS_ONLN);
    REQUIRE(processors > 0 && processors <= PROCESSORS_MAX);
    for (int i = 0; i < 2; i++) {
        char path[128];
        struct perf_event_attr attr = {.type = PERF_TYPE_TRACEPOINT, .size = PERF_ATTR_SIZE_VER0};
        long id;

        snprintf(path, sizeof(path), "%s/%s/id", TRACEPOINTS, names[i]);
        id = number_in(path, "");
        if (id < 0)
            return false; /* older kernels lack them */
        attr.config = (unsigned long)id;
        for (int cpu = 0; cpu < processors; cpu++) {
            counts[i][cpu] =
                (int)syscall(SYS_perf_event_open, &attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC);
            REQUIRE(counts[i][cpu] >= 0);
        }
    }
    return true;
}

static long counted(int which) {
    uint64_t sum = 0, count;

    for (int cpu = 0; cpu < processors; cpu++) {
        REQUIRE(read(counts[which][cpu], &count, sizeof(count)) == sizeof(count));
        sum += count;
    }
    return (long)sum;
}

/*
 * How many more were taken back than made, so far: at least so many have been copied. The map of a
 * huge page that is split makes entries for all its pages at once, without a tracepoint; other
 * splits of such maps are counted with these, and what leaves with its process is missing: both
 * make it less. An entry that becomes the zero page has no tracepoint either, but is a page less in
 * its process.
 */
static long excess(void) {
    return counted(0) + *dropped - counted(1) -
           number_in("/proc/vmstat", "thp_split_pmd ") * pages(huge_page_size(SIZE));
}

static void read_pagemap(const char *memory, uint64_t *entries, long count) {
    ssize_t bytes = (ssize_t)((size_t)count * sizeof(*entries));
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);

    REQUIRE(fd >= 0);
    REQUIRE(pread(fd, entries, (size_t)bytes,
                  (off_t)((uintptr_t)memory / (size_t)page_size() * sizeof(*entries))) == bytes);
    close(fd);
}

static uint64_t frame_of_zeros(void) {
    char *page = map_anon((size_t)page_size());
    uint64_t entry;

    read_pages(page, (size_t)page_size());
    read_pagemap(page, &entry, 1);
    unmap(page, (size_t)page_size());
    return entry & PAGEMAP_PFN;
}

/* Pages of the memory that are not the zero page: on the move or not. */
static long kept(const char *memory) {
    static uint64_t entries[SIZE / 4096];
    long count = 0;

    read_pagemap(memory, entries, pages(SIZE));
    for (long i = 0; i < pages(SIZE); i++)
        count += (entries[i] & PAGEMAP_SWAP) || (entries[i] & PAGEMAP_PFN) != zero_frame;
    return count;
}

static void note_drops(const char *memory, long before) {
    __atomic_fetch_add(dropped, before - kept(memory), __ATOMIC_RELAXED);
}

static bool split(const char *memory, size_t bytes) {
    char range[96];
    int fd = open(SPLITTER, O_WRONLY | O_CLOEXEC), size;
    bool done;

    if (fd < 0)
        return false;
    size = snprintf(range, sizeof(range), "%d,0x%lx,0x%lx", getpid(), (uintptr_t)memory,
                    (uintptr_t)memory + bytes);
    done = write(fd, range, (size_t)size) == size;
    close(fd);
    return done;
}

static void be_child(const char *memory, struct turn over) {
    long before = kept(memory);

    turn_take(over);
    quiet("forked meanwhile");
    note_drops(memory, before);
    _exit(0);
}

static void fork_meanwhile(const char *memory) {
    struct turn go = turn_new(), over = turn_new();
    long before = kept(memory);
    pid_t splitter = fork();

    REQUIRE(splitter >= 0);
    if (!splitter) {
        turn_give(go);
        REQUIRE(split(memory, SIZE));
        for (int count = 0; count < FORKS; count++)
            turn_give(over);
        quiet("split");
        note_drops(memory, before);
        _exit(0);
    }
    turn_take(go);
    for (int count = 0; count < FORKS; count++) {
        pid_t pid = fork();

        REQUIRE(pid >= 0);
        if (!pid)
            be_child(memory, over);
    }
    for (int count = 0; count < FORKS + 1; count++)
        await_end(-1, 0);
    note_drops(memory, before);
}

int main(int argc, char **argv) {
    bool zeros = argc > 1 && !strcmp(argv[1], "zeros");
    struct figures base = quiet("base");
    bool counting;
    long most = 0;

    if (!split((const char *)&base, 1)) /* before 5.13 it takes no range of one process */
        skip("cannot write a range to %s: %s", SPLITTER, strerror(errno));
    counting = count_entries();
    zero_frame = frame_of_zeros();
    dropped = (long *)map_shared_anon((size_t)page_size());
    *dropped = 0;
    if (counting)
        excess(); /* so that what it needs itself is there */
    base = quiet("counting");
    for (int round = 0; round < ROUNDS || (counting && !most && round < ROUNDS_MAX); round++) {
        char *memory = map_aligned(SIZE, true);
        long before, met;

        write_steps(memory, SIZE, zeros ? MIB(1) : (size_t)page_size());
        EXPECT_NET(quiet("written"), base, .anon = pages(SIZE));
        before = counting ? excess() : 0;
        fork_meanwhile(memory);
        quiet("after the forks");
        met = counting ? excess() - before : 0;
        most = met > most ? met : most;
        unmap(memory, SIZE);
        EXPECT_NET(quiet("round over"), base);
    }
    note(counting ? "entries copied" : "entries not counted", 0, 0, most);
    if (counting && !most)
        skip("no fork met a page on the move");
    return 0;
}
