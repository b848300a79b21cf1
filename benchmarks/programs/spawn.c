// SPDX-License-Identifier: MIT
/*
 * spawn COUNT REPETITIONS CPU PROGRAM: starts PROGRAM and waits for its end, back to back, COUNT times a repetition.
 * Prints JSON: nanoseconds of elapsed time per process, and of CPU time (its own and the children's), one figure a
 * repetition. CPU is the one to stay on, or -1.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#define REPETITIONS_MAX 1000

static double wall[REPETITIONS_MAX], cpu[REPETITIONS_MAX];

static double seconds(struct timeval t)
{
    return (double)t.tv_sec + (double)t.tv_usec * 1e-6;
}

static double cpu_now(void)
{
    struct rusage own, children;

    getrusage(RUSAGE_SELF, &own);
    getrusage(RUSAGE_CHILDREN, &children);
    return seconds(own.ru_utime) + seconds(own.ru_stime) + seconds(children.ru_utime) + seconds(children.ru_stime);
}

static double wall_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int run(char *program)
{
    char *argv[] = {program, NULL};
    int status;
    pid_t pid;

    return posix_spawn(&pid, program, NULL, NULL, argv, argv + 1) || waitpid(pid, &status, 0) != pid || status;
}

static void print(const char *name, const double *figures, int count)
{
    printf("\"%s\": [", name);
    for (int i = 0; i < count; i++)
        printf("%s%.0f", i ? ", " : "", figures[i] * 1e9);
    printf("]");
}

int main(int argc, char **argv)
{
    int count = argc == 5 ? atoi(argv[1]) : 0, repetitions = argc == 5 ? atoi(argv[2]) : 0;
    cpu_set_t set;

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
    printf("}\n");
    return 0;
}
