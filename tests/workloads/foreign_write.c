// SPDX-License-Identifier: MIT
/*
 * A child faults pages into its parent, by process_vm_writev, /proc/PID/mem or ptrace: the parent
 * holds them, the child acted.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#define SIZE MIB(16)

static char source[4096];

/* A byte a page, so that no more of the child's own memory is needed than it has. */
static void write_by_vm_writev(pid_t parent, char *memory) {
    for (size_t at = 0; at < SIZE; at += (size_t)page_size()) {
        struct iovec from = {source, 1}, to = {memory + at, 1};

        REQUIRE(process_vm_writev(parent, &from, 1, &to, 1, 0) == 1);
    }
}

static void write_by_mem_file(pid_t parent, char *memory) {
    char path[32];
    int fd;

    snprintf(path, sizeof(path), "/proc/%d/mem", parent);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    REQUIRE(fd >= 0);
    for (size_t at = 0; at < SIZE; at += (size_t)page_size())
        REQUIRE(pwrite(fd, source, 1, (off_t)((uintptr_t)memory + at)) == 1);
    close(fd);
}

static void write_by_ptrace(pid_t parent, char *memory) {
    int status;

    REQUIRE(!ptrace(PTRACE_ATTACH, parent, NULL, NULL));
    REQUIRE(waitpid(parent, &status, __WALL) == parent && WIFSTOPPED(status));
    for (size_t at = 0; at < SIZE; at += (size_t)page_size())
        REQUIRE(!ptrace(PTRACE_POKEDATA, parent, memory + at, (void *)1));
    REQUIRE(!ptrace(PTRACE_DETACH, parent, NULL, NULL));
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "vm_writev";
    struct figures base = quiet("base");
    char *memory = map_anon(SIZE);
    struct turn go = turn_new(), done = turn_new();
    pid_t parent = getpid(), child;

    child = fork();
    REQUIRE(child >= 0);
    if (!child) {
        turn_take(go);
        if (!strcmp(mode, "vm_writev"))
            write_by_vm_writev(parent, memory);
        else if (!strcmp(mode, "mem"))
            write_by_mem_file(parent, memory);
        else if (!strcmp(mode, "ptrace"))
            write_by_ptrace(parent, memory);
        else
            fail("no mode %s", mode);
        turn_give(done);
        pause();
    }
    EXPECT_NET(quiet("untouched"), base);
    note("acted on by", child, (uintptr_t)memory, pages(SIZE));
    turn_give(go);
    turn_take(done);
    /* Before we act ourselves: what we look with may have to be mapped first. */
    note("acted", child, (uintptr_t)memory, pages(SIZE));
    EXPECT_NET(quiet("written"), base, .anon = pages(SIZE));
    REQUIRE(!kill(child, SIGKILL));
    await_end(child, SIGKILL);
    _exit(0);
}
