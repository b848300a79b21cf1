// SPDX-License-Identifier: MIT
/*
 * crowd PARENTS CHILDREN PAGES: so many processes, each of which forks as many children, which live
 * at one time. A child writes so many pages and sleeps until it is killed. What each process holds
 * when all are there is reported as a note "holds". Until then nobody gives a page back, and
 * afterwards nobody takes one: the tree's peak is the sum.
 *
 * What a process costs the kernel is what limits their number, so what a child writes lies beside
 * the program's data, under one page table with it, and before the forks nothing is called that
 * would map more.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "oracle.h"
#include "procfs.h"
#include "region.h"
#include "turns.h"

#define PAGES_MAX 4
#define PAGE_BYTES_MAX (64 << 10)
#define WALKED 50 /* children whose page tables are walked once more, by the oracle */

static char region[PAGES_MAX * PAGE_BYTES_MAX] __attribute__((aligned(PAGE_BYTES_MAX)));
static struct turn here, never, go;

/*
 * The same twice, the first time without effect: what comes after a process is there has been
 * executed before.
 */
static void live(size_t bytes) {
    pid_t pid = getpid();
    char token;

    write_pages(region, bytes);
    for (size_t some = 0;; some = sizeof(pid))
        if (write(here.fds[1], &pid, some) != (ssize_t)some ||
            (read(never.fds[0], &token, some), some))
            _exit(1);
}

static void work(long count, size_t bytes) {
    pid_t group = 0, own = getpid();

    signal(SIGCHLD, SIG_DFL);
    close(never.fds[1]); /* should the first process fail, all end */
    close(go.fds[1]);
    for (long i = 0; i < count; i++) {
        pid_t pid = fork();

        REQUIRE(pid >= 0);
        if (!pid)
            live(bytes);
        group = group ? group : pid;
        REQUIRE(!setpgid(pid, group));
    }
    settle();
    REQUIRE(write(here.fds[1], &own, sizeof(own)) == sizeof(own));
    turn_take(go);
    REQUIRE(!kill(-group, SIGKILL)); /* so that none runs and touches more */
    for (long i = 0; i < count; i++)
        await_end(-1, SIGKILL);
    _exit(0);
}

static void await_all(pid_t *pids, size_t count) {
    size_t bytes = count * sizeof(*pids);

    for (size_t got = 0; got < bytes;) {
        ssize_t n = read(here.fds[0], (char *)pids + got, bytes - got);

        REQUIRE(n > 0);
        got += (size_t)n;
    }
}

/* By the kernel's own walk of the page tables. */
static long held_by(pid_t pid) {
    char text[1024], *line;

    read_of(pid, "smaps_rollup", text, sizeof(text));
    line = strstr(text, "\nRss:");
    REQUIRE(line);
    return atol(line + strlen("\nRss:")) * 1024 / page_size();
}

static void ended_early(int signal) {
    (void)signal;
    _exit(EXIT_FAILURE);
}

int main(int argc, char **argv) {
    long parents = argc == 4 ? atol(argv[1]) : 0, each = parents ? atol(argv[2]) : 0,
         written = each ? atol(argv[3]) : 0;
    size_t all = (size_t)(parents + parents * each);
    struct figures found;
    pid_t *pids;

    REQUIRE(parents > 0 && each > 0 && written >= 0 && written <= PAGES_MAX);
    here = turn_new();
    never = turn_new();
    go = turn_new();
    signal(SIGCHLD, ended_early);
    for (long i = 0; i < parents; i++) {
        pid_t pid = fork();

        REQUIRE(pid >= 0);
        if (!pid)
            work(each, (size_t)(written * page_size()));
    }
    pids = (pid_t *)map_anon(all * sizeof(*pids));
    await_all(pids, all);
    quiet("all there");
    for (size_t i = 0; i < all; i++)
        note("holds", pids[i], 0, held_by(pids[i]));
    for (size_t i = 0; i < WALKED; i++) {
        pid_t pid = pids[i * (all - 1) / (WALKED - 1)];

        found = quiet_of(pid, "one of them");
        if (found.file + found.anon + found.shmem != held_by(pid))
            fail("process %d holds %ld + %ld + %ld pages, not %ld", pid, found.file, found.anon,
                 found.shmem, held_by(pid));
    }
    signal(SIGCHLD, SIG_DFL);
    /* one after the other, or the machine would have much to run at one time */
    for (long i = 0; i < parents; i++) {
        turn_give(go);
        await_end(-1, 0);
    }
    _exit(0);
}
