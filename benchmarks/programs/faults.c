// SPDX-License-Identifier: MIT
/*
 * faults MIB REPETITIONS THREADS CPU: threads of one process touch all pages of their parts of MIB,
 * and give them back, again and again. Pages that were used a moment ago come from the kernel's
 * free lists, which keeps the machine's state (and that of a host which backs memory only when it
 * is touched) out of the figures.
 *
 * Prints JSON: nanoseconds of CPU time per page, one figure a repetition, start and end of the
 * process left out; and what the process holds at most and at its end. CPU is the one to stay on,
 * or -1.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <time.h>

#include "rss.h"

#define REPETITIONS_MAX 1000
#define THREADS_MAX 16
/* So that there is something of each kind. */
#define SHARED_BYTES (64 << 10)

static struct part {
    pthread_t thread;
    volatile char *start;
    size_t bytes;
    int64_t cpu_ns[REPETITIONS_MAX];
} parts[THREADS_MAX];

static pthread_barrier_t barrier;
static pthread_mutex_t looking = PTHREAD_MUTEX_INITIALIZER;
static int repetitions;
static size_t page;
static struct rss peak;

static int64_t cpu_now_ns(void) {
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void *touch(void *argument) {
    struct part *part = argument;

    /* On this thread's stack too: to look for the first time takes a page of it. */
    pthread_mutex_lock(&looking);
    rss_now();
    pthread_mutex_unlock(&looking);
    for (int i = 0; i < repetitions; i++) {
        int64_t start_ns;

        pthread_barrier_wait(&barrier);
        start_ns = cpu_now_ns();
        for (size_t offset = 0; offset < part->bytes; offset += page)
            part->start[offset] = 1;
        part->cpu_ns[i] = cpu_now_ns() - start_ns;
        if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD && i == repetitions - 1)
            peak = rss_now();
        pthread_barrier_wait(&barrier);
        madvise((void *)part->start, part->bytes, MADV_DONTNEED);
    }
    return NULL;
}

static void stay_on(int cpu) {
    cpu_set_t set;

    if (cpu < 0)
        return;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof(set), &set))
        perror("sched_setaffinity");
}

static void tell(int threads) {
    static char text[64 + 16 * REPETITIONS_MAX];
    int used = snprintf(text, sizeof(text), "{\"unit_ns\": [");

    for (int i = 0; i < repetitions; i++) {
        int64_t sum_ns = 0;

        for (int j = 0; j < threads; j++)
            sum_ns += parts[j].cpu_ns[i];
        used += snprintf(text + used, sizeof(text) - (size_t)used, "%s%.1f", i ? ", " : "",
                         (double)sum_ns / ((double)(parts[0].bytes / page) * threads));
    }
    used += snprintf(text + used, sizeof(text) - (size_t)used,
                     "], \"rss_bytes\": %ld, \"held\": {\"pid\": %d, ", rss_sum(peak), getpid());
    used += rss_json(text + used, sizeof(text) - (size_t)used, "peak", peak);
    used += snprintf(text + used, sizeof(text) - (size_t)used, ", ");
    used += rss_json(text + used, sizeof(text) - (size_t)used, "last", rss_now());
    used += snprintf(text + used, sizeof(text) - (size_t)used, "}}\n");
    if (write(STDOUT_FILENO, text, (size_t)used) != used)
        perror("write");
}

int main(int argc, char **argv) {
    int threads = argc == 5 ? atoi(argv[3]) : 0;
    size_t bytes;
    char *area;

    repetitions = argc == 5 ? atoi(argv[2]) : 0;
    if (threads < 1 || threads > THREADS_MAX || repetitions < 1 || repetitions > REPETITIONS_MAX) {
        fprintf(stderr, "usage: faults MIB REPETITIONS THREADS CPU\n");
        return 2;
    }
    stay_on(atoi(argv[4]));
    page = (size_t)sysconf(_SC_PAGESIZE);
    bytes = ((size_t)atoi(argv[1]) << 20) / (size_t)threads & ~(page - 1);
    mmap(NULL, SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    rss_settle();
    area = mmap(NULL, bytes * (size_t)threads, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                -1, 0);
    if (area == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    madvise(area, bytes * (size_t)threads, MADV_NOHUGEPAGE);
    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++) {
        parts[i].start = area + bytes * (size_t)i;
        parts[i].bytes = bytes;
        if (pthread_create(&parts[i].thread, NULL, touch, &parts[i]))
            return 1;
    }
    for (int i = 0; i < threads; i++)
        pthread_join(parts[i].thread, NULL);
    tell(threads);
    /* Not return: what runs at exit would take pages that nobody has told of. */
    _exit(0);
}
