// SPDX-License-Identifier: MIT
/*
 * attach OBJECT CMD [ARG...]: loads a BPF object, attaches all its programs, and runs a command
 * meanwhile.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bpf/libbpf.h>

static int attach(const char *path) {
    struct bpf_object *object = bpf_object__open(path);
    struct bpf_program *program;

    if (!object || bpf_object__load(object))
        return -1;
    bpf_object__for_each_program (program, object) {
        if (!bpf_program__attach(program))
            return -1;
    }
    return 0;
}

int main(int argc, char **argv) {
    int status;
    pid_t pid;

    if (argc < 3 || attach(argv[1])) {
        fprintf(stderr, "attach: %s: %s\n", argc < 3 ? "usage: attach OBJECT CMD" : argv[1],
                strerror(errno));
        return 125;
    }
    pid = fork();
    if (!pid) {
        execvp(argv[2], argv + 2);
        _exit(127);
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
