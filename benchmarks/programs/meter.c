// SPDX-License-Identifier: MIT
/*
 * meter FILE CMD [ARG...]: runs a command and writes to FILE, as JSON, what it took. Recorders record it with its
 * command, so that their own start and end are not in its figures; it is small and static, and tells what it holds.
 */
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include "rss.h"

extern char **environ;

static long long ns_of(struct timeval t)
{
    return t.tv_sec * 1000000000LL + t.tv_usec * 1000LL;
}

static long long now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(int argc, char **argv)
{
    struct rusage used;
    long long start_ns, wall_ns;
    int status, error;
    FILE *file;
    pid_t pid;

    if (argc < 3)
        return 2;
    file = fopen(argv[1], "w");
    if (!file) {
        perror(argv[1]);
        return 2;
    }
    rss_bytes();
    start_ns = now_ns();
    error = posix_spawnp(&pid, argv[2], NULL, NULL, argv + 2, environ);
    if (error) {
        fprintf(stderr, "%s: %s\n", argv[2], strerror(error));
        return 127;
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    wall_ns = now_ns() - start_ns;
    getrusage(RUSAGE_CHILDREN, &used);
    fprintf(file, "{\"wall_ns\": %lld, \"cpu_ns\": %lld, \"meter_rss_bytes\": %ld}\n", wall_ns,
            ns_of(used.ru_utime) + ns_of(used.ru_stime), rss_bytes());
    fclose(file);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
