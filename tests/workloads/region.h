/* SPDX-License-Identifier: MIT */
/*
 * Memory to play with. Unless it says otherwise, memory is of small pages, whatever the system's
 * huge page policy.
 */
#ifndef REGION_H
#define REGION_H

#include <stdbool.h>
#include <stddef.h>

char *map_anon(size_t bytes);        /* private, untouched */
char *map_shared_anon(size_t bytes); /* shared, untouched */
char *map_file(int fd, size_t bytes, bool shared);

/* Private, aligned to the size of a huge page, with or without MADV_HUGEPAGE. */
char *map_aligned(size_t bytes, bool huge);
void unmap(void *start, size_t bytes);
void small_pages_only(char *start, size_t bytes);

void write_pages(void *start, size_t bytes); /* a byte of each page, and a different one in each */
void write_steps(void *start, size_t bytes, size_t step);
void read_pages(const void *start, size_t bytes);

/*
 * An unlinked file whose pages count as file, all of it written: in MEMTRACK_FILE_DIR, or /var/tmp.
 * Skips the workload where that is shmem.
 */
int make_file(size_t bytes);
int make_memfd(size_t bytes);

/*
 * The size that one huge page of the page tables' second level maps; skips the workload where
 * `bytes` is no multiple of it, or the kernel has none.
 */
size_t huge_page_size(size_t bytes);

/*
 * How much of the mappings in a range huge pages map, in bytes: what smaps calls `field`
 * ("AnonHugePages:").
 */
size_t mapped_huge(const void *start, size_t bytes, const char *field);

#endif
