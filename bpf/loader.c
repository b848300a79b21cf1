// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* The host side of the BPF object, on libbpf. */
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "event.h"
#include "state.h"

#include "loader.h"

/*
 * Enough for the verifier's whole account of one program at libbpf's default level; what is beyond
 * is cut.
 */
#define LOG_BYTES (1 << 20)

/* More than the object has programs. */
#define LINKS_MAX 64

struct attachment {
    struct bpf_program *program;
    struct bpf_link *link;
};

struct probes {
    struct bpf_object *object;
    struct attachment attachments[LINKS_MAX];
    size_t attached;
    size_t log_used;
    char log[LOG_BYTES];
};

/*
 * libbpf has one print callback for the whole process; each call that can print names its own log
 * first.
 */
static __thread struct probes *printing;

static int print(enum libbpf_print_level level, const char *format, va_list args) {
    size_t room;
    int n;

    if (!printing || level == LIBBPF_DEBUG)
        return 0;
    room = sizeof(printing->log) - printing->log_used;
    n = vsnprintf(printing->log + printing->log_used, room, format, args);
    if (n > 0)
        printing->log_used += (size_t)n < room ? (size_t)n : room - 1;
    return n;
}

static void listen_for(struct probes *probes) {
    printing = probes;
    libbpf_set_print(print);
}

int probes__open(struct probes **out, const void *object, size_t size) {
    LIBBPF_OPTS(bpf_object_open_opts, options, .object_name = "memtrack");
    struct probes *probes = calloc(1, sizeof(*probes));
    struct bpf_program *program;
    int err;

    *out = probes;
    if (!probes)
        return -ENOMEM;
    libbpf_set_strict_mode(LIBBPF_STRICT_ALL);
    listen_for(probes);
    probes->object = bpf_object__open_mem(object, size, &options);
    if (!probes->object) {
        err = -errno;
        return err ? err : -EINVAL;
    }
    bpf_object__for_each_program (program, probes->object)
        bpf_program__set_autoload(program, false);
    return 0;
}

void probes__close(struct probes **handle) {
    struct probes *probes = *handle;

    *handle = NULL;
    if (!probes)
        return;
    listen_for(probes);
    while (probes->attached)
        bpf_link__destroy(probes->attachments[--probes->attached].link);
    bpf_object__close(probes->object);
    printing = NULL;
    free(probes);
}

static struct bpf_program *find(struct probes *probes, const char *name) {
    return bpf_object__find_program_by_name(probes->object, name);
}

int probes__autoload(struct probes *probes, const char *name) {
    struct bpf_program *program = find(probes, name);

    listen_for(probes);
    return program ? bpf_program__set_autoload(program, true) : -ENOENT;
}

int probes__resize(struct probes *probes, const char *name, uint32_t max_entries) {
    struct bpf_map *map = bpf_object__find_map_by_name(probes->object, name);

    listen_for(probes);
    return map ? bpf_map__set_max_entries(map, max_entries) : -ENOENT;
}

int probes__settings(struct probes *probes, const struct settings *settings) {
    struct bpf_map *map = bpf_object__find_map_by_name(probes->object, ".rodata.settings");

    listen_for(probes);
    return map ? bpf_map__set_initial_value(map, settings, sizeof(*settings)) : -ENOENT;
}

int probes__load(struct probes *probes) {
    listen_for(probes);
    return bpf_object__load(probes->object);
}

int probes__attach(struct probes *probes, const char *name) {
    struct bpf_program *program = find(probes, name);
    struct bpf_link *link;

    if (!program)
        return -ENOENT;
    if (probes->attached == LINKS_MAX)
        return -ENOSPC;
    listen_for(probes);
    link = bpf_program__attach(program);
    if (!link)
        return -errno;
    probes->attachments[probes->attached++] = (struct attachment){program, link};
    return 0;
}

static ssize_t find_attachment(struct probes *probes, const char *name) {
    struct bpf_program *program = find(probes, name);

    for (size_t i = 0; i < probes->attached; i++)
        if (program && probes->attachments[i].program == program)
            return (ssize_t)i;
    return -ENOENT;
}

int probes__detach(struct probes *probes, const char *name) {
    ssize_t i = find_attachment(probes, name);
    int err;

    if (i < 0)
        return (int)i;
    listen_for(probes);
    err = bpf_link__destroy(probes->attachments[i].link);
    probes->attachments[i] = probes->attachments[--probes->attached];
    return err;
}

int probes__run(struct probes *probes, const char *name) {
    LIBBPF_OPTS(bpf_test_run_opts, options);
    struct bpf_program *program = find(probes, name);
    int err;

    if (!program)
        return -ENOENT;
    err = bpf_prog_test_run_opts(bpf_program__fd(program), &options);
    return err ? err : (int)options.retval;
}

int probes__iterate(struct probes *probes, const char *name) {
    ssize_t i = find_attachment(probes, name), n;
    char sink[256];
    int fd;

    if (i < 0)
        return (int)i;
    fd = bpf_iter_create(bpf_link__fd(probes->attachments[i].link));
    if (fd < 0)
        return -errno;
    /* The program writes nothing to its file: the first read walks everything. */
    do {
        n = read(fd, sink, sizeof(sink));
    } while (n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN)));
    if (n < 0)
        n = -errno;
    close(fd);
    return (int)n;
}

int probes__map_fd(struct probes *probes, const char *name) {
    struct bpf_map *map = bpf_object__find_map_by_name(probes->object, name);

    return map ? bpf_map__fd(map) : -ENOENT;
}

int probes__control(struct probes *probes, const struct control *control) {
    uint32_t zero = 0;

    return bpf_map_update_elem(probes__map_fd(probes, "control_map"), &zero, control, 0);
}

int probes__tally(struct probes *probes, struct tally *tally) {
    uint32_t zero = 0;

    return bpf_map_lookup_elem(probes__map_fd(probes, "tally_map"), &zero, tally);
}

int probes__figures(struct probes *probes, struct figures *figures) {
    struct {
        uint64_t lock;
        struct figures figures;
    } value;
    uint32_t zero = 0;
    int err;

    err = bpf_map_lookup_elem_flags(probes__map_fd(probes, "tree_map"), &zero, &value, BPF_F_LOCK);
    if (!err)
        *figures = value.figures;
    return err;
}

/*
 * Whether another program does the same, so that nothing is lost when one is skipped; it counts
 * what both miss.
 */
static bool has_twin(const struct probes *probes, const struct bpf_program *program) {
    const char *name = bpf_program__name(program), *again = strstr(name, "_again");
    char twin[128];

    snprintf(twin, sizeof(twin), "%s_again", name);
    return again || bpf_object__find_program_by_name(probes->object, twin);
}

/* See preempt.bpf.h. */
static bool stands_in_for(const struct bpf_program *standin, const struct bpf_program *program) {
    const char *name = bpf_program__name(program), *longer = bpf_program__name(standin);
    size_t length = strlen(name);

    return !strncmp(longer, name, length) &&
           !strncmp(longer + length, "_standin", strlen("_standin"));
}

static bool is_standin(const struct bpf_program *program) {
    return strstr(bpf_program__name(program), "_standin");
}

static int misses(const struct bpf_program *program, uint64_t *count) {
    struct bpf_prog_info info = {0};
    uint32_t size = sizeof(info);

    if (bpf_obj_get_info_by_fd(bpf_program__fd(program), &info, &size))
        return -errno;
    *count = info.recursion_misses;
    return 0;
}

/*
 * How many events at most: as many as the one missed that missed the fewest, since what it has seen
 * is dealt with.
 */
static int misses_at_most(const struct probes *probes, const struct bpf_program *program,
                          uint64_t *count) {
    struct bpf_program *standin;
    uint64_t missed;
    int err = misses(program, count);

    bpf_object__for_each_program (standin, probes->object) {
        if (err)
            return err;
        if (bpf_program__fd(standin) < 0 || !stands_in_for(standin, program))
            continue;
        err = misses(standin, &missed);
        if (!err && missed < *count)
            *count = missed;
    }
    return err;
}

int probes__skipped(struct probes *probes, struct skips *skips) {
    struct bpf_program *program;
    uint64_t missed;
    int err;

    *skips = (struct skips){0};
    bpf_object__for_each_program (program, probes->object) {
        const char *name = bpf_program__name(program);

        if (bpf_program__fd(program) < 0 || has_twin(probes, program) || is_standin(program))
            continue;
        err = misses_at_most(probes, program, &missed);
        if (err)
            return err;
        if (!strcmp(name, "sched_process_exec"))
            skips->execs_at_most = missed;
        else if (!strcmp(name, "sched_process_exit"))
            skips->exits_at_most = missed;
        else
            skips->others += missed;
    }
    return 0;
}

/* Behind a key that has been deleted the kernel starts anew. */
static bool is_gone(int map, const uint32_t *key) {
    struct process process;

    return key && bpf_map_lookup_elem(map, key, &process);
}

int probes__unseen(struct probes *probes, uint32_t round, uint64_t *count) {
    int map = probes__map_fd(probes, "processes");
    uint32_t key, last, *previous = NULL;
    struct process process;

    *count = 0;
    while (!bpf_map_get_next_key(map, previous, &key)) {
        if (is_gone(map, previous)) {
            *count = 0;
            previous = NULL;
            continue;
        }
        if (!bpf_map_lookup_elem(map, &key, &process) && process.seen < round)
            (*count)++;
        last = key;
        previous = &last;
    }
    return errno == ENOENT ? 0 : -errno;
}

const char *probes__log(const struct probes *probes) {
    return probes->log;
}
