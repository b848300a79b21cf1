/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What Python may do with the BPF object. Functions return 0 or a count, or a negative errno. Not
 * safe for use by two threads at once, apart from probes__control, probes__tally and
 * probes__figures.
 */
#ifndef MEMTRACK_LOADER_H
#define MEMTRACK_LOADER_H

struct probes;

/*
 * How often the kernel skipped programs; of two hooks the most that can have been missed, since
 * others stood in.
 */
struct skips {
    uint64_t others;
    uint64_t execs_at_most;
    uint64_t exits_at_most;
};

/* Parses the object, which is copied. All programs start with autoload off. */
int probes__open(struct probes **out, const void *object, size_t size);
/* Detaches and unloads whatever is there, and frees it. Sets it to NULL, and may find it so. */
void probes__close(struct probes **handle);

int probes__autoload(struct probes *probes, const char *program);
int probes__resize(struct probes *probes, const char *map, uint32_t max_entries);
int probes__settings(struct probes *probes, const struct settings *settings);
int probes__load(struct probes *probes);

int probes__attach(struct probes *probes, const char *program);
int probes__detach(struct probes *probes, const char *program);
/* Runs a SEC("syscall") program once; its return value if that is not negative. */
int probes__run(struct probes *probes, const char *program);
/* Has the kernel walk all tasks through an attached SEC("iter/task") program. */
int probes__iterate(struct probes *probes, const char *program);

int probes__map_fd(struct probes *probes, const char *map);
int probes__control(struct probes *probes, const struct control *control);
int probes__tally(struct probes *probes, struct tally *tally);
/* The tree's figures at one instant. */
int probes__figures(struct probes *probes, struct figures *figures);
/* How often the kernel skipped a program because it was running on that CPU already. */
int probes__skipped(struct probes *probes, struct skips *skips);
/* How many processes of the tree ADOPT_SEEN has not found in this round: their exit was missed. */
int probes__unseen(struct probes *probes, uint32_t round, uint64_t *count);

/* What libbpf and the verifier said so far, owned by `probes`; also after a call that failed. */
const char *probes__log(const struct probes *probes);

#endif
