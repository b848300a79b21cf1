// SPDX-License-Identifier: MIT
/*
 * spawn COUNT REPETITIONS CPU PROGRAM: starts PROGRAM and waits for its end, back to back, COUNT
 * times a repetition. Prints JSON: nanoseconds of elapsed time per process, and of CPU time (its
 * own and the children's), one figure a repetition; and, where it may trace, what it holds with a
 * child that is about to end. CPU: to stay on, or -1.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <spawn.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include "rss.h"

#define REPETITIONS_MAX 1000

static double wall[REPETITIONS_MAX], cpu[REPETITIONS_MAX];

static double seconds(struct timeval t) {
    return (double)t.tv_sec + (double)t.tv_usec * 1e-6;
}

static double cpu_now(void) {
    struct rusage own, children;

    getrusage(RUSAGE_SELF, &own);
    getrusage(RUSAGE_CHILDREN, &children);
    return seconds(own.ru_utime) + seconds(own.ru_stime) + seconds(children.ru_utime) +
           seconds(children.ru_stime);
}

static double wall_now(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int run(char *program) {
    char *argv[] = {program, NULL};
    int status;
    pid_t pid;

    return posix_spawn(&pid, program, NULL, NULL, argv, argv + 1) ||
           waitpid(pid, &status, 0) != pid || status;
}

/*
 * A child more, which is stopped when it has begun to end and still holds all that it ever will;
 * -1: it cannot be.
 */
static long with_child_bytes(char *program) {
    char *argv[] = {program, NULL}, smaps[32];
    struct rss child;
    int status;
    pid_t pid = vfork();

    if (!pid) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        execv(program, argv);
        _exit(127);
    }
    if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status))
        return -1;
    ptrace(PTRACE_SETOPTIONS, pid, NULL, (void *)PTRACE_O_TRACEEXIT);
    ptrace(PTRACE_CONT, pid, NULL, NULL);
    if (waitpid(pid, &status, 0) != pid || status >> 8 != (SIGTRAP | PTRACE_EVENT_EXIT << 8))
        return -1;
    snprintf(smaps, sizeof(smaps), "/proc/%d/smaps", pid);
    child = rss_of(smaps);
    ptrace(PTRACE_CONT, pid, NULL, NULL);
    waitpid(pid, &status, 0);
    return rss_sum(rss_now()) + rss_sum(child);
}

static void print(const char *name, const double *figures, int count) {
    printf("\"%s\": [", name);
    for (int i = 0; i < count; i++)
        printf("%s%.0f", i ? ", " : "", figures[i] * 1e9);
    printf("]");
}

int main(int argc, char **argv) {
    int count = argc == 5 ? atoi(argv[1]) : 0, repetitions = argc == 5 ? atoi(argv[2]) : 0;
    cpu_set_t set;
    long bytes;

    if (count < 1 || repetitions < 1 || repetitions > REPETITIONS_MAX) {
        fprintf(stderr, "usage: spawn COUNT REPETITIONS CPU PROGRAM\n");
        return 2;
    }
    if (atoi(argv[3]) >= 0) {
        CPU_ZERO(&set);
        CPU_SET(atoi(argv[3]), &set);
        if (sched_setaffinity(0, sizeof(set), &set))
            perror("sched_setaffinity");
    }
    rss_settle();
    for (int i = 0; i < repetitions; i++) {
        double wall_start = wall_now(), cpu_start = cpu_now();

        for (int j = 0; j < count; j++)
            if (run(argv[4])) {
                fprintf(stderr, "spawn: %s cannot be run\n", argv[4]);
                return 1;
            }
        wall[i] = (wall_now() - wall_start) / count;
        cpu[i] = (cpu_now() - cpu_start) / count;
    }
    printf("{");
    print("unit_ns", cpu, repetitions);
    printf(", ");
    print("unit_wall_ns", wall, repetitions);
    bytes = with_child_bytes(argv[4]);
    if (bytes >= 0)
        printf(", \"rss_bytes\": %ld", bytes);
    printf("}\n");
    return 0;
}
