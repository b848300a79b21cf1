/* SPDX-License-Identifier: MIT */
/*
 * Quiet points. A workload stops, walks page tables and reports what is held as one line of JSON;
 * the harness compares the recording with it. Lines go to the file that MEMTRACK_ORACLE names, each
 * in one write, so that processes may share it; or to the descriptor in MEMTRACK_ORACLE_FD; or to
 * standard output.
 */
#ifndef ORACLE_H
#define ORACLE_H

#include <stddef.h>
#include <sys/types.h>

#include "walk.h"

#define MIB(n) ((size_t)(n) << 20)

/* What a figure of so many bytes is in pages. */
long pages(size_t bytes);

/*
 * Faults in every page that the process has mapped, so that nothing but what the workload does
 * between two points shows in their difference. The first quiet() does it; a forked child, which
 * has few of its parent's file pages, may again.
 */
void settle(void);

/*
 * Reports what this process holds. Nothing is touched between the walk and the report. Fails the
 * workload if its memory will not hold still.
 */
struct figures quiet(const char *point);

/*
 * The same for another process, which must be stopped or asleep: nothing of the walk shows in its
 * figures.
 */
struct figures quiet_of(pid_t pid, const char *point);

/* The same through one of the process's threads, which is there even after its leader has gone. */
struct figures quiet_of_thread(pid_t tid, pid_t pid, const char *point);

/*
 * From here on this process's points are reported under another process, the one that shares its
 * memory and that it is to be shown under. 0 ends it.
 */
void shown_as(pid_t pid);

/*
 * Fails the workload unless `now` is `base` and the given figures: EXPECT_NET(now, base, .anon =
 * pages(MIB(64))).
 */
#define EXPECT_NET(now, base, ...) \
    expect_net(__FILE__, __LINE__, now, base, (struct figures){__VA_ARGS__})
void expect_net(const char *file, int line, struct figures now, struct figures base,
                struct figures net);

/*
 * Reports something that the harness is to look for in the recording, such as an address and a
 * number of pages.
 */
void note(const char *name, pid_t pid, unsigned long address, long page_count);

/*
 * Ends the workload: `fail` as wrong, `skip` as one that this machine cannot show, with the reason.
 */
__attribute__((noreturn, format(printf, 1, 2))) void fail(const char *format, ...);
__attribute__((noreturn, format(printf, 1, 2))) void skip(const char *format, ...);

/* Fails the workload with the system's error unless `true`. */
#define REQUIRE(condition)                                         \
    do {                                                           \
        if (!(condition))                                          \
            fail("%s:%d: %s: %m", __FILE__, __LINE__, #condition); \
    } while (0)

#endif
