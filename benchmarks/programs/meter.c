// SPDX-License-Identifier: MIT
/*
 * meter [--starve] FILE CMD [ARG...]: runs a command and writes to FILE, as JSON, what it took.
 * Recorders record it with its command, so that their own start and end are not in its figures; it
 * is small and static, and tells what it holds.
 *
 * --starve: while the command runs, its parent, which is the recorder, gets what is left of the
 * CPUs that both are on.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include "rss.h"

extern char **environ;

static long long ns_of(struct timeval t) {
    return t.tv_sec * 1000000000LL + t.tv_usec * 1000LL;
}

static long long now_ns(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* SCHED_IDLE weighs 3, nice -19 weighs 71755 (kernel/sched/core.c). */
static void starve(int policy, int nice) {
    struct sched_param none = {0};
    const struct dirent *task;
    char path[32];
    DIR *tasks;

    snprintf(path, sizeof(path), "/proc/%d/task", getppid());
    tasks = opendir(path);
    while (tasks && (task = readdir(tasks)))
        if (*task->d_name != '.' && sched_setscheduler(atoi(task->d_name), policy, &none))
            perror("sched_setscheduler");
    if (tasks)
        closedir(tasks);
    if (setpriority(PRIO_PROCESS, 0, nice))
        perror("setpriority");
}

int main(int argc, char **argv) {
    static char text[512];
    struct rusage used;
    long long start_ns, wall_ns;
    int status, error, size, fd, starves = argc > 1 && !strcmp(argv[1], "--starve");
    int nice = getpriority(PRIO_PROCESS, 0);
    pid_t pid;

    argc -= starves;
    argv += starves;
    if (argc < 3)
        return 2;
    fd = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        perror(argv[1]);
        return 2;
    }
    if (starves)
        starve(SCHED_IDLE, -19);
    rss_settle();
    start_ns = now_ns();
    error = posix_spawnp(&pid, argv[2], NULL, NULL, argv + 2, environ);
    if (error) {
        fprintf(stderr, "%s: %s\n", argv[2], strerror(error));
        return 127;
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    wall_ns = now_ns() - start_ns;
    if (starves)
        starve(SCHED_OTHER, nice);
    /* Its ru_maxrss is that of the largest of all descendants that were waited for. */
    getrusage(RUSAGE_CHILDREN, &used);
    size = snprintf(
        text, sizeof(text),
        "{\"wall_ns\": %lld, \"cpu_ns\": %lld, \"largest_bytes\": %lld, \"held\": {\"pid\": %d, ",
        wall_ns, ns_of(used.ru_utime) + ns_of(used.ru_stime), used.ru_maxrss * 1024LL, getpid());
    size += rss_json(text + size, sizeof(text) - (size_t)size, "last", rss_now());
    size += snprintf(text + size, sizeof(text) - (size_t)size, "}}\n");
    if (write(fd, text, (size_t)size) != size)
        perror(argv[1]);
    /* Not return: what runs at exit would take pages that nobody has told of. */
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}
