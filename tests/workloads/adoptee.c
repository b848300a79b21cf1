// SPDX-License-Identifier: MIT
/*
 * A process with a thread and a child that runs before anyone watches. A byte on standard input
 * starts each step; the points after the first are those of a watched process.
 */
#include <pthread.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#define SIZE MIB(64)
#define CHILD_SIZE MIB(32)
#define MORE MIB(16)

static struct turn thread_go, thread_done, child_go, child_done;
static char *thread_memory;

static void *run_thread(void *unused) {
    (void)unused;
    turn_take(thread_go);
    write_pages(thread_memory, MORE);
    turn_give(thread_done);
    pause();
    return NULL;
}

static void run_child(void) {
    struct figures before;

    write_pages(map_anon(CHILD_SIZE), CHILD_SIZE);
    settle();
    quiet("unwatched child");
    turn_give(child_done);
    turn_take(child_go);
    before = quiet("child");
    write_pages(map_anon(MORE), MORE);
    EXPECT_NET(quiet("child wrote"), before, .anon = pages(MORE));
    turn_give(child_done);
    _exit(0);
}

static void await_step(void) {
    char step;

    REQUIRE(read(STDIN_FILENO, &step, 1) == 1);
}

int main(void) {
    struct figures base = quiet("unwatched"), before;
    char *memory = map_anon(SIZE);
    pthread_t thread;
    pid_t child;

    thread_go = turn_new();
    thread_done = turn_new();
    child_go = turn_new();
    child_done = turn_new();
    thread_memory = map_anon(MORE);
    write_pages(memory, SIZE);
    EXPECT_NET(quiet("unwatched, written"), base, .anon = pages(SIZE));
    child = fork();
    REQUIRE(child >= 0);
    if (!child)
        run_child();
    turn_take(child_done);
    REQUIRE(!pthread_create(&thread, NULL, run_thread, NULL));
    await_sleep(child);
    quiet("unwatched, with a thread");
    note("ready", 0, 0, 0);

    await_step();
    before = quiet("adopted");
    turn_give(thread_go);
    turn_take(thread_done);
    EXPECT_NET(quiet("thread wrote"), before, .anon = pages(MORE));
    turn_give(child_go);
    turn_take(child_done);
    await_end(child, 0);
    EXPECT_NET(quiet("child gone"), before, .anon = pages(MORE));
    child = fork();
    REQUIRE(child >= 0);
    if (!child) {
        quiet("new child");
        unmap(memory, SIZE);
        quiet("new child unmapped");
        _exit(0);
    }
    await_end(child, 0);
    unmap(memory, SIZE);
    quiet("unmapped");
    _exit(0);
}
