/* SPDX-License-Identifier: MIT */
/* What /proc says of a process. */
#ifndef PROCFS_H
#define PROCFS_H

#include <stddef.h>
#include <sys/types.h>

/* Reads the beginning of a file of /proc/PID, as a string. */
void read_of(pid_t pid, const char *file, char *text, size_t size);

#endif
