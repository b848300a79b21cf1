// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "oracle.h"
#include "procfs.h"

void read_of(pid_t pid, const char *file, char *text, size_t size) {
    char path[64];
    ssize_t got;
    int fd;

    snprintf(path, sizeof(path), "/proc/%d/%s", pid, file);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    REQUIRE(fd >= 0);
    got = read(fd, text, size - 1);
    REQUIRE(got > 0);
    close(fd);
    text[got] = '\0';
}
