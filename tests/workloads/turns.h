/* SPDX-License-Identifier: MIT */
/* Processes that take turns: whoever waits is asleep in the kernel and touches nothing. */
#ifndef TURNS_H
#define TURNS_H

#include <stdbool.h>
#include <sys/types.h>

/* One direction; survives fork and exec. The first token given wakes the first taker. */
struct turn {
    int fds[2];
};

struct turn turn_new(void);
void turn_give(struct turn turn);
void turn_take(struct turn turn);

/* Waits until a process, or one of its threads, sleeps in the kernel (or is stopped). */
void await_sleep(pid_t pid);

/* Waits for a child (-1: whichever) to end and fails unless it ended with this wait status. */
void await_end(pid_t pid, int wait_status);

/*
 * Runs a file of the workloads' own directory with these arguments, by posix_spawn, which shares
 * memory until exec.
 */
pid_t spawn_workload(const char *name, char *const argv[]);
char *workload_path(const char *name);

#endif
