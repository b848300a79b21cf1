// SPDX-License-Identifier: MIT
/* Pages that compaction moves elsewhere: other frames, the same figures. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"

#define SIZE MIB(256)
#define KEPT_EVERY \
    8 /* pages: leaves every block of memory mostly free, which is what compaction empties */
#define ENTRIES (MIB(256) / 4096)
#define PAGEMAP_PFN ((1ULL << 55) - 1)

static uint64_t frames_before[ENTRIES], frames_after[ENTRIES];

static void read_frames(const char *memory, uint64_t *frames) {
    size_t bytes = (size_t)pages(SIZE) * sizeof(*frames);
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);

    REQUIRE(fd >= 0);
    for (size_t at = 0; at < bytes;) {
        off_t from = (off_t)((uintptr_t)memory / (size_t)page_size() * sizeof(*frames) + at);
        ssize_t got = pread(fd, (char *)frames + at, bytes - at, from);

        REQUIRE(got > 0);
        at += (size_t)got;
    }
    close(fd);
}

static long moved(void) {
    long count = 0;

    for (long i = 0; i < pages(SIZE); i++)
        count += (frames_before[i] & PAGEMAP_PFN) != (frames_after[i] & PAGEMAP_PFN);
    return count;
}

static void compact(void) {
    int fd = open("/proc/sys/vm/compact_memory", O_WRONLY | O_CLOEXEC);

    if (fd < 0)
        skip("cannot compact memory: %s", strerror(errno));
    REQUIRE(write(fd, "1", 1) == 1);
    close(fd);
}

int main(void) {
    struct figures base = quiet("base");
    char *memory = map_anon(SIZE);
    size_t page = (size_t)page_size();
    long kept = pages(SIZE) / KEPT_EVERY;

    write_pages(memory, SIZE);
    EXPECT_NET(quiet("written"), base, .anon = pages(SIZE));
    for (long i = 0; i < pages(SIZE); i++)
        if (i % KEPT_EVERY)
            REQUIRE(!madvise(memory + (size_t)i * page, page, MADV_DONTNEED));
    read_frames(memory, frames_before);
    EXPECT_NET(quiet("scattered"), base, .anon = kept);
    compact();
    EXPECT_NET(quiet("compacted"), base, .anon = kept);
    read_frames(memory, frames_after);
    note("moved", 0, (uintptr_t)memory, moved());
    unmap(memory, SIZE);
    EXPECT_NET(quiet("end"), base);
    if (!moved())
        skip("compaction found nothing to move");
    return 0;
}
