// SPDX-License-Identifier: MIT
/*
 * Pages that userfaultfd places, from another thread or another process: charged to the address
 * space they land in.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#define SIZE MIB(16)

/* Since Linux 6.8; older headers lack it. */
struct move {
    uint64_t dst, src, len, mode;
    int64_t moved;
};
#define UFFDIO_MOVE_6_8 _IOWR(UFFDIO, 0x05, struct move)
#define FEATURE_MOVE (1 << 16)

struct placement {
    int fd;
    char *to, *from;
    bool done;
};

static int open_userfaultfd(uint64_t features) {
    struct uffdio_api api = {.api = UFFD_API, .features = features};
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);

    if (fd < 0)
        skip("userfaultfd: %s", strerror(errno));
    if (ioctl(fd, UFFDIO_API, &api))
        skip("userfaultfd lacks features %#llx", (unsigned long long)features);
    return fd;
}

static void watch(int fd, char *memory) {
    struct uffdio_register range = {
        .range = {.start = (uintptr_t)memory, .len = SIZE},
        .mode = UFFDIO_REGISTER_MODE_MISSING,
    };

    REQUIRE(!ioctl(fd, UFFDIO_REGISTER, &range));
}

/* Copies over the first half, and zeroes over the second. */
static bool place(const struct placement *placement) {
    struct uffdio_copy copy = {
        .dst = (uintptr_t)placement->to,
        .src = (uintptr_t)placement->from,
        .len = SIZE / 2,
    };
    struct uffdio_zeropage zero = {
        .range = {.start = (uintptr_t)placement->to + SIZE / 2, .len = SIZE / 2}};

    return !ioctl(placement->fd, UFFDIO_COPY, &copy) &&
           !ioctl(placement->fd, UFFDIO_ZEROPAGE, &zero);
}

static void *place_from_thread(void *placement) {
    ((struct placement *)placement)->done = place(placement);
    return NULL;
}

static void place_from(const char *who, struct placement *placement) {
    if (!strcmp(who, "thread")) {
        pthread_t thread;

        REQUIRE(!pthread_create(&thread, NULL, place_from_thread, placement));
        REQUIRE(!pthread_join(thread, NULL));
        REQUIRE(placement->done);
    } else {
        pid_t pid = fork();

        REQUIRE(pid >= 0);
        if (!pid)
            _exit(place(placement) ? 0 : 1);
        await_end(pid, 0);
    }
}

static void anonymous(const char *who) {
    int fd = open_userfaultfd(0);
    struct figures before = quiet("base"), after;
    char *source = map_anon(SIZE), *memory = map_anon(SIZE);
    struct placement placement = {.fd = fd, .to = memory, .from = source};

    write_pages(source, SIZE);
    before = quiet("source written");
    watch(fd, memory);
    place_from(who, &placement);
    after = quiet("placed");
    /* the thread's stack */
    before.anon += strcmp(who, "thread") ? 0 : after.anon - before.anon - pages(SIZE / 2);
    EXPECT_NET(after, before, .anon = pages(SIZE / 2)); /* the other half is the zero page */
    if (after.zero - before.zero != pages(SIZE / 2))
        fail("%ld zero pages, not %ld", after.zero - before.zero, pages(SIZE / 2));
    close(fd);
    write_pages(memory, SIZE);
    EXPECT_NET(quiet("written"), before, .anon = pages(SIZE));
    unmap(memory, SIZE);
    EXPECT_NET(quiet("end"), before);
}

static void shared(const char *who) {
    int fd = open_userfaultfd(UFFD_FEATURE_MISSING_SHMEM);
    struct figures before = quiet("base"), after;
    char *source = map_anon(SIZE), *memory = map_shared_anon(SIZE);
    struct placement placement = {.fd = fd, .to = memory, .from = source};

    write_pages(source, SIZE);
    before = quiet("source written");
    watch(fd, memory);
    place_from(who, &placement);
    after = quiet("placed");
    if (after.shmem - before.shmem != pages(SIZE))
        fail("%ld shared pages, not %ld", after.shmem - before.shmem, pages(SIZE));
    unmap(memory, SIZE);
    if (quiet("end").shmem != before.shmem)
        fail("shared pages stayed");
}

static void moved(void) {
    int fd = open_userfaultfd(FEATURE_MOVE);
    struct figures base = quiet("base");
    char *source = map_anon(SIZE), *memory = map_anon(SIZE);
    struct move move = {.dst = (uintptr_t)memory, .src = (uintptr_t)source, .len = SIZE};

    write_pages(source, SIZE);
    EXPECT_NET(quiet("written"), base, .anon = pages(SIZE));
    watch(fd, memory);
    if (ioctl(fd, UFFDIO_MOVE_6_8, &move))
        fail("UFFDIO_MOVE: %s", strerror(errno));
    EXPECT_NET(quiet("moved"), base, .anon = pages(SIZE));
    unmap(source, SIZE);
    EXPECT_NET(quiet("source unmapped"), base, .anon = pages(SIZE));
    unmap(memory, SIZE);
    EXPECT_NET(quiet("end"), base);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "anon", *who = argc > 2 ? argv[2] : "thread";

    if (!strcmp(mode, "anon"))
        anonymous(who);
    else if (!strcmp(mode, "shmem"))
        shared(who);
    else if (!strcmp(mode, "move"))
        moved();
    else
        fail("no mode %s", mode);
    return 0;
}
