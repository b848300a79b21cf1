/* SPDX-License-Identifier: MIT */
/* What a process of these programs holds: the truth that recorders are compared with. */
#ifndef BENCHMARKS_RSS_H
#define BENCHMARKS_RSS_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct rss {
    long anon, file, shmem; /* bytes */
};

/*
 * What is mapped so far is resident from here on, so that to look and to tell what was seen takes
 * nothing more.
 */
static inline void rss_settle(void) {
    if (mlockall(MCL_CURRENT))
        perror("mlockall");
    munlockall();
}

/*
 * From a walk of the page tables, not from the counters that recorders follow; ends the process if
 * /proc is silent.
 */
static inline struct rss rss_of(const char *smaps) {
    static char text[1 << 16];
    struct rss rss = {0};
    size_t used = 0;
    ssize_t size;
    int fd = open(smaps, O_RDONLY), shmem = 0;
    long resident = 0, anon;
    char *line, *rest = text;

    while ((size = fd < 0 ? -1 : read(fd, text + used, sizeof(text) - 1 - used)) > 0)
        used += (size_t)size;
    if (size < 0 || !used || used == sizeof(text) - 1) {
        fprintf(stderr, "%s cannot be read\n", smaps);
        _exit(1);
    }
    close(fd);
    text[used] = 0;
    while ((line = strsep(&rest, "\n"))) {
        if (sscanf(line, "Rss: %ld kB", &resident) == 1)
            continue;
        if (sscanf(line, "Anonymous: %ld kB", &anon) == 1) {
            rss.anon += anon << 10;
            *(shmem ? &rss.shmem : &rss.file) += (resident - anon) << 10;
        } else if (*line < 'A' || *line > 'Z') {
            /* what memory that is shared and has no file is shown as */
            shmem = !!strstr(line, "/dev/zero (deleted)");
        }
    }
    return rss;
}

static inline struct rss rss_now(void) {
    return rss_of("/proc/self/smaps");
}

static inline long rss_sum(struct rss rss) {
    return rss.anon + rss.file + rss.shmem;
}

/* As a member of a JSON object; returns the bytes written. */
static inline int rss_json(char *to, size_t room, const char *name, struct rss rss) {
    return snprintf(to, room,
                    "\"%s\": {\"anon_bytes\": %ld, \"file_bytes\": %ld, \"shmem_bytes\": %ld}",
                    name, rss.anon, rss.file, rss.shmem);
}

#endif
