/* SPDX-License-Identifier: MIT */
/*
 * What an address space holds, found by walking its page tables: the truth that the counters are
 * held against.
 */
#ifndef WALK_H
#define WALK_H

#include <stdbool.h>

/*
 * In pages of the system's size, named as the kernel names its counters. RSS is file + anon +
 * shmem.
 */
struct figures {
    long file;
    long anon;
    long swap;
    long shmem;
    long hugetlb; /* in no counter */
    long zero;    /* maps of the zero page: in no counter */
    long special; /* maps of memory that has no page the kernel accounts, such as the vvar */
};

/*
 * The kernel's counters as /proc/PID/status has them. Exact from 6.16, and in no way used to find
 * the figures.
 */
struct counters {
    long file;
    long anon;
    long swap;
    long shmem;
    long threads;
};

/*
 * Walks /proc/WHO ("thread-self", or a pid): false if the two views of it that walk() takes
 * disagree, as they do while it changes. Touches no page that the first call did not touch.
 */
bool walk(const char *who, struct figures *out);
void read_counters(const char *who, struct counters *out);

/* Whether pages can be told apart by their flags (root); otherwise smaps alone is the source. */
bool walk_sees_page_flags(void);

long page_size(void);

#endif
