// SPDX-License-Identifier: MIT
/*
 * until_exit COMMAND [ARGUMENT...]: an oracle for any program. Stops each process of the command's
 * tree when it is forked, when it has a new image, and just before it gives up its memory, and
 * reports what it holds then; and with what status it ended. Ends as the command did, after its
 * whole tree.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "oracle.h"
#include "turns.h"

#define TASKS_MAX 4096
#define OPTIONS                                                                            \
    (PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC | \
     PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL)

enum birth {
    BIRTH_UNKNOWN, /* seen before its parent's report of it */
    BIRTH_FORK,    /* has a copy of its parent's memory */
    BIRTH_SHARED,  /* a thread, or a process in its parent's memory until it execs */
};

struct task {
    pid_t tid, tgid;
    enum birth birth;
    bool waiting; /* in its first stop */
    bool exiting;
};

static struct task tasks[TASKS_MAX];
static int task_count;

static struct task *task_of(pid_t tid) {
    for (int i = 0; i < task_count; i++)
        if (tasks[i].tid == tid)
            return &tasks[i];
    if (task_count == TASKS_MAX)
        fail("more than %d tasks", TASKS_MAX);
    tasks[task_count] = (struct task){.tid = tid};
    return &tasks[task_count++];
}

static void forget(pid_t tid) {
    *task_of(tid) = tasks[task_count - 1];
    task_count--;
}

static pid_t tgid_of(pid_t tid) {
    char path[32], line[128];
    int tgid = 0;
    FILE *status;

    snprintf(path, sizeof(path), "/proc/%d/status", tid);
    status = fopen(path, "re");
    if (!status)
        return 0;
    while (!tgid && fgets(line, sizeof(line), status))
        sscanf(line, "Tgid: %d", &tgid);
    fclose(status);
    return tgid;
}

static void go_on(pid_t tid, int signal) {
    if (ptrace(PTRACE_CONT, tid, NULL, (void *)(long)signal) &&
        errno != ESRCH) /* killed meanwhile */
        fail("cannot continue %d: %s", tid, strerror(errno));
}

static bool is_last(const struct task *task) {
    for (int i = 0; i < task_count; i++)
        if (tasks[i].tgid == task->tgid && tasks[i].tid != task->tid && !tasks[i].exiting)
            return false;
    return true;
}

/* A task's first stop and its parent's report come in either order; with both it may run. */
static void begin(struct task *task) {
    if (!task->waiting || task->birth == BIRTH_UNKNOWN)
        return;
    task->waiting = false;
    task->tgid = tgid_of(task->tid);
    if (task->birth == BIRTH_FORK && task->tgid)
        quiet_of(task->tid, "forked");
    go_on(task->tid, 0);
}

static void take_birth(pid_t parent, enum birth birth) {
    unsigned long child;

    if (!ptrace(PTRACE_GETEVENTMSG, parent, NULL, &child)) {
        task_of((pid_t)child)->birth = birth;
        begin(task_of((pid_t)child));
    }
    go_on(parent, 0);
}

/*
 * The image is the process's own, whatever it was before; it has the leader's tid, whichever thread
 * did it.
 */
static void take_exec(pid_t tid) {
    struct task *task = task_of(tid);

    task->tgid = tid;
    task->birth = BIRTH_FORK;
    task->exiting = false;
    quiet_of(tid, "new image");
    go_on(tid, 0);
}

static void take_exit(pid_t tid) {
    struct task *task = task_of(tid);
    bool own_memory = task->birth == BIRTH_FORK || tid != task->tgid;

    task->exiting = true;
    if (task->tgid && is_last(task) && own_memory)
        quiet_of_thread(tid, task->tgid, "before exit");
    go_on(tid, 0);
}

static void take_stop(pid_t tid, int status) {
    int event = status >> 16, signal = WSTOPSIG(status);

    switch (event) {
        case PTRACE_EVENT_FORK:
            take_birth(tid, BIRTH_FORK);
            break;
        case PTRACE_EVENT_VFORK:
        case PTRACE_EVENT_CLONE:
            take_birth(tid, BIRTH_SHARED);
            break;
        case PTRACE_EVENT_EXEC:
            take_exec(tid);
            break;
        case PTRACE_EVENT_EXIT:
            take_exit(tid);
            break;
        case PTRACE_EVENT_STOP:
            if (!task_of(tid)->tgid) {
                task_of(tid)->waiting = true;
                begin(task_of(tid));
            } else if (signal == SIGTRAP) {
                go_on(tid, 0);
            } else { /* stopped, as by job control: until it is continued */
                ptrace(PTRACE_LISTEN, tid, NULL, NULL);
            }
            break;
        default:
            go_on(tid, signal);
    }
}

/* Tasks of a process end one by one, its leader last; that is the process's end. */
static void take_end(pid_t tid, int status) {
    if (task_of(tid)->tgid == tid)
        note("ended", tid, (unsigned long)status, 0);
    forget(tid);
}

static pid_t start(char **command) {
    struct turn go = turn_new();
    pid_t pid = fork();

    REQUIRE(pid >= 0);
    if (!pid) {
        turn_take(go);
        close(go.fds[0]);
        close(go.fds[1]);
        execvp(command[0], command);
        fail("%s: %s", command[0], strerror(errno));
    }
    task_of(pid)->tgid = pid;
    task_of(pid)->birth = BIRTH_FORK;
    REQUIRE(!ptrace(PTRACE_SEIZE, pid, NULL, OPTIONS));
    turn_give(go);
    close(go.fds[0]);
    close(go.fds[1]);
    return pid;
}

int main(int argc, char **argv) {
    int status, command_status = 0;
    pid_t command, tid;

    if (argc < 2)
        fail("usage: until_exit COMMAND [ARGUMENT...]");
    quiet("oracle");
    command = start(argv + 1);
    while ((tid = waitpid(-1, &status, __WALL)) > 0 || errno == EINTR) {
        if (tid < 0)
            continue;
        if (WIFSTOPPED(status)) {
            take_stop(tid, status);
            continue;
        }
        if (tid == command)
            command_status = status;
        take_end(tid, status);
    }
    return WIFSIGNALED(command_status) ? 128 + WTERMSIG(command_status)
                                       : WEXITSTATUS(command_status);
}
