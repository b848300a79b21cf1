// SPDX-License-Identifier: MIT
/*
 * An idle process's memory taken by kswapd, when free memory falls below its mark. The mark is
 * raised to where free memory is, and put back before anyone looks.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#define SIZE MIB(64)
#define MARK "/proc/sys/vm/min_free_kbytes"
/*
 * Allocations wake kswapd, once no zone has more free than its mark: the small first zone is used
 * up by these.
 */
#define NEEDED MIB(16)
#define NEEDED_AGAIN MIB(1)
#define POLL_NS 100000000
#define POLLS_MAX 300 /* half a minute */
#define STILL_POLLS 10

static long read_number(const char *path, const char *name) {
    char line[128];
    long number = -1;
    FILE *file = fopen(path, "re");

    REQUIRE(file);
    while (number < 0 && fgets(line, sizeof(line), file))
        if (!strncmp(line, name, strlen(name)))
            number = strtol(line + strlen(name), NULL, 10);
    fclose(file);
    return number;
}

static void set_mark(long kib) {
    char text[24];
    int fd = open(MARK, O_WRONLY | O_CLOEXEC);

    if (fd < 0)
        skip("%s: %s", MARK, strerror(errno));
    REQUIRE(write(fd, text, (size_t)snprintf(text, sizeof(text), "%ld", kib)) > 0);
    close(fd);
}

/*
 * kswapd wakes below 5/4 of the mark, and works until there is 3/2 of it; only below the mark
 * itself is anyone else made to help.
 */
static void press(void) {
    long before = read_number(MARK, ""), taken = 0;
    char *memory = map_anon(NEEDED);

    set_mark(read_number("/proc/meminfo", "MemFree:") / 6 * 5);
    write_pages(memory, NEEDED);
    for (int poll = 0, still = 0; poll < POLLS_MAX && still < STILL_POLLS; poll++) {
        const struct timespec pause = {.tv_nsec = POLL_NS};
        long now;

        REQUIRE(!madvise(memory, NEEDED_AGAIN, MADV_DONTNEED));
        write_pages(memory, NEEDED_AGAIN);
        nanosleep(&pause, NULL);
        now = read_number("/proc/vmstat", "pgsteal_kswapd ");
        still = now == taken ? still + 1 : 0;
        taken = now;
    }
    set_mark(before);
}

static void be_presser(struct turn go, struct turn done) {
    turn_take(go);
    press();
    turn_give(done);
    pause();
}

int main(void) {
    struct figures base = quiet("base"), now;
    struct turn go = turn_new(), done = turn_new();
    char *memory;
    pid_t child = fork();

    REQUIRE(child >= 0);
    if (!child)
        be_presser(go, done);
    memory = map_anon(SIZE);
    write_pages(memory, SIZE);
    EXPECT_NET(quiet("written"), base, .anon = pages(SIZE));
    note("pressed by", child, 0, 0);
    turn_give(go);
    turn_take(done);
    now = quiet("taken");
    note("pressed", child, 0, 0);
    REQUIRE(!kill(child, SIGKILL));
    await_end(child, SIGKILL);
    if (now.anon - base.anon + now.swap != pages(SIZE))
        fail("%ld resident and %ld in swap are not %ld", now.anon - base.anon, now.swap,
             pages(SIZE));
    if (!now.swap)
        skip("kswapd took none of it");
    read_pages(memory, SIZE);
    now = quiet("read again"); /* of what it held before, some may still be out */
    if (now.anon - base.anon + now.swap != pages(SIZE))
        fail("%ld resident and %ld in swap are not %ld", now.anon - base.anon, now.swap,
             pages(SIZE));
    _exit(0);
}
