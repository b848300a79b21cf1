// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include <alloca.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "oracle.h"

/*
 * A walk that finds its own pages coming in is repeated; so is one that the kernel disturbs
 * (khugepaged, reclaim).
 */
#define WALKS_MAX 200

#define STATUS_SKIP 77 /* as Automake's tests say it */

/* More than any workload's call chain or a signal frame uses between two points. */
#define STACK_BYTES (256 * 1024)

static char report[1024];
static size_t report_used;
static int report_fd = -1;
static bool settled;
static pid_t reported_pid;

long pages(size_t bytes) {
    return (long)(bytes / (size_t)page_size());
}

static uint64_t now_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void put(const char *text) {
    size_t length = strlen(text);

    if (report_used + length >= sizeof(report))
        fail("a report is too long");
    memcpy(report + report_used, text, length + 1);
    report_used += length;
}

static void put_number(const char *key, int64_t number) {
    char digits[24];
    size_t at = sizeof(digits) - 1;
    uint64_t rest = number < 0 ? -(uint64_t)number : (uint64_t)number;

    put(", \"");
    put(key);
    put("\": ");
    digits[at] = '\0';
    do
        digits[--at] = (char)('0' + rest % 10);
    while (rest /= 10);
    if (number < 0)
        digits[--at] = '-';
    put(digits + at);
}

static void begin(const char *kind, const char *name) {
    report_used = 0;
    put("{\"");
    put(kind);
    put("\": \"");
    put(name);
    put("\"");
}

static void open_report(void) {
    const char *path = getenv("MEMTRACK_ORACLE"), *fd = getenv("MEMTRACK_ORACLE_FD");

    if (report_fd >= 0)
        return;
    if (path)
        report_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    else
        report_fd = fd ? atoi(fd) : STDOUT_FILENO;
    if (report_fd < 0)
        fail("cannot open %s: %s", path, strerror(errno));
}

static void send_report(void) {
    if (write(report_fd, report, report_used) != (ssize_t)report_used)
        fail("cannot write a report: %s", strerror(errno));
}

/* The pid as whoever mounted /proc sees it, which getpid() in a pid namespace of its own is not. */
static pid_t shown_pid(void) {
    char link[16] = "";

    if (reported_pid)
        return reported_pid;
    if (readlink("/proc/self", link, sizeof(link) - 1) < 0)
        fail("cannot read /proc/self: %s", strerror(errno));
    return atoi(link);
}

static void touch(char *start, char *end, bool write) {
    for (volatile char *page = start; (char *)page < end; page += page_size()) {
        char kept = *page;

        if (write)
            *page = kept;
    }
}

/* Text, data (copied, where it is private), stack. */
void settle(void) {
    volatile char *stack = alloca(STACK_BYTES);
    unsigned long start, end;
    char permissions[8], name[256];
    char line[512];
    FILE *maps;

    settled = true;
    for (size_t at = 0; at < STACK_BYTES; at += 1024)
        stack[at] = 1;
    maps = fopen("/proc/self/maps", "re");
    if (!maps)
        fail("cannot read /proc/self/maps: %s", strerror(errno));
    while (fgets(line, sizeof(line), maps)) {
        *name = '\0';
        if (sscanf(line, "%lx-%lx %7s %*s %*s %*s %255s", &start, &end, permissions, name) < 3)
            fail("cannot read a line of /proc/self/maps: %s", line);
        if (permissions[0] == 'r' && strncmp(name, "[v", 2) != 0) /* [vdso], [vvar], [vsyscall] */
            touch((char *)start, (char *)end, permissions[1] == 'w');
    }
    fclose(maps);
}

static void begin_point(const char *point, pid_t pid, const struct figures *found,
                        const struct counters *counters) {
    begin("point", point);
    put_number("pid", pid);
    put_number("own_pid", getpid());
    put_number("page_size", page_size());
    put_number("file", found->file);
    put_number("anon", found->anon);
    put_number("swap", found->swap);
    put_number("shmem", found->shmem);
    put_number("hugetlb", found->hugetlb);
    put_number("zero", found->zero);
    put_number("special", found->special);
    put_number("threads", counters->threads + (reported_pid ? 1 : 0)); /* that other process's */
    put(", \"counters\": {\"unit\": \"pages\"");
    put_number("file", counters->file);
    put_number("anon", counters->anon);
    put_number("swap", counters->swap);
    put_number("shmem", counters->shmem);
    put("}");
    put(walk_sees_page_flags() ? ", \"source\": \"pagemap\"" : ", \"source\": \"smaps\"");
}

/*
 * Everything but the last write(2) is done twice with the same result before it counts, so that it
 * has no page left to fault in.
 */
static struct figures settle_and_report(const char *who, pid_t pid, const char *point) {
    struct figures found = {0}, before = {0};
    struct counters counters;
    bool steady = false;
    uint64_t from_ns;

    open_report();
    for (int count = 0; count < WALKS_MAX; count++) {
        bool agreed;

        from_ns = now_ns();
        agreed = walk(who, &found);
        read_counters(who, &counters);
        begin_point(point, pid ? pid : shown_pid(), &found, &counters);
        put_number("from_ns", (int64_t)from_ns);
        put_number("ns", (int64_t)now_ns());
        put("}\n");
        if (agreed && steady && !memcmp(&found, &before, sizeof(found))) {
            send_report();
            return found;
        }
        if (write(report_fd, "", 0))
            fail("cannot write a report: %s", strerror(errno));
        steady = agreed;
        before = found;
    }
    fail("%s: no quiet point after %d walks: file %ld anon %ld shmem %ld hugetlb %ld", point,
         WALKS_MAX, found.file, found.anon, found.shmem, found.hugetlb);
}

struct figures quiet(const char *point) {
    if (!settled)
        settle();
    return settle_and_report("thread-self", 0, point);
}

struct figures quiet_of_thread(pid_t tid, pid_t pid, const char *point) {
    char who[16];

    snprintf(who, sizeof(who), "%d", tid);
    return settle_and_report(who, pid, point);
}

struct figures quiet_of(pid_t pid, const char *point) {
    return quiet_of_thread(pid, pid, point);
}

void shown_as(pid_t pid) {
    reported_pid = pid;
}

void expect_net(const char *file, int line, struct figures now, struct figures base,
                struct figures net) {
    const struct {
        const char *name;
        long found, wanted;
    } rows[] = {
        {"file", now.file - base.file, net.file},
        {"anon", now.anon - base.anon, net.anon},
        {"swap", now.swap - base.swap, net.swap},
        {"shmem", now.shmem - base.shmem, net.shmem},
        {"hugetlb", now.hugetlb - base.hugetlb, net.hugetlb},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
        if (rows[i].found != rows[i].wanted)
            fail("%s:%d: %s is %+ld pages, not %+ld", file, line, rows[i].name, rows[i].found,
                 rows[i].wanted);
}

void note(const char *name, pid_t pid, unsigned long address, long page_count) {
    open_report();
    begin("note", name);
    put_number("pid", pid ? pid : shown_pid());
    put_number("address", (int64_t)address);
    put_number("pages", page_count);
    put_number("ns", (int64_t)now_ns());
    put("}\n");
    send_report();
}

void fail(const char *format, ...) {
    va_list args;

    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    exit(EXIT_FAILURE);
}

void skip(const char *format, ...) {
    char reason[256];
    va_list args;

    va_start(args, format);
    vsnprintf(reason, sizeof(reason), format, args);
    va_end(args);
    open_report();
    begin("skip", reason);
    put("}\n");
    send_report();
    exit(STATUS_SKIP);
}
