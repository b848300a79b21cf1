/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What the running kernel has, read from its BTF. Everything here answers a question and decides
 * nothing; memtrack.hooks decides. Strings are UTF-8, NUL-terminated and never cut: a buffer that
 * is too small is -ENOSPC.
 */
#ifndef MEMTRACK_KERNEL_BTF_H
#define MEMTRACK_KERNEL_BTF_H

#include <stddef.h>

struct kernel_btf;

/*
 * Opens the running kernel's BTF (path NULL), or a raw BTF or ELF file. NULL and a negative errno
 * in *err on failure.
 */
struct kernel_btf *kernel_btf__open(const char *path, int *err);
void kernel_btf__close(struct kernel_btf *btf);

/*
 * "folio_add_file_rmap_ptes,folio_move_anon_rmap": the functions whose names begin with `prefix`
 * and hold `part`, each once, in no order. Returns their number, or a negative errno.
 */
int kernel_btf__functions(const struct kernel_btf *btf, const char *prefix, const char *part,
                          char *names, size_t size);

/*
 * "folio,page,nr_pages,vma": the names of a function's parameters. Returns their number, or a
 * negative errno: -ENOENT no such function.
 */
int kernel_btf__func(const struct kernel_btf *btf, const char *name, char *params, size_t size);

/*
 * "struct mm_struct *,int": the types of a tracepoint's arguments (BTF has no names for them).
 * Returns their number, or a negative errno: -ENOENT no such tracepoint.
 */
int kernel_btf__tracepoint(const struct kernel_btf *btf, const char *name, char *params,
                           size_t size);

/*
 * "array percpu_counter", "struct mm_rss_stat", "u64": the type of a struct's member, also of one
 * inside an anonymous struct or union. Returns 0, or a negative errno: -ENOENT no such struct or no
 * such member.
 */
int kernel_btf__member(const struct kernel_btf *btf, const char *type, const char *member,
                       char *type_name, size_t size);

/*
 * Loads an empty program on the entry of a kernel function (fentry) or on a tracepoint (tp_btf),
 * attaches and removes it. Returns 0 if the kernel took it, or the negative errno it refused with.
 */
int kernel_btf__try_fentry(const struct kernel_btf *btf, const char *func);
int kernel_btf__try_tp_btf(const struct kernel_btf *btf, const char *tracepoint);

#endif
