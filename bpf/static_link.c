/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Distributions compile libbpf.a and libelf.a for programs, and we link them into a shared library.
 * In two places that makes a difference which the linker refuses, because a program may address the
 * data in question in ways that a shared library may not. This file holds what stands in for those
 * two.
 */
#include <stdio.h>

#include <libelf.h>

/*
 * libbpf's default printing function reads the C library's `stderr` as if it lay in the same file
 * (R_X86_64_PC32, R_AARCH64_ADR_PREL_PG_HI21). The linker's --wrap=stderr sends that here;
 * __real_stderr is then the C library's.
 */
extern FILE *__real_stderr;
FILE *__wrap_stderr;

static void __attribute__((constructor)) take_stderr(void) {
    __wrap_stderr = __real_stderr;
}

/*
 * libelf's error number is thread-local, addressed as only a program can (R_X86_64_TPOFF32,
 * R_AARCH64_TLSLE_*). This is that part of its interface written anew; since these definitions are
 * met first, libelf's stay in the archive.
 */
void __libelf_seterrno(int value);

static __thread int last_error;

void __libelf_seterrno(int value) {
    last_error = value;
}

int elf_errno(void) {
    int error = last_error;

    last_error = 0;
    return error;
}

/*
 * As libelf's: 0 asks for the last error and gives NULL if there is none, -1 asks for it and always
 * gives a text.
 */
const char *elf_errmsg(int error) {
    static __thread char text[32];

    if (error == 0 && last_error == 0)
        return NULL;
    snprintf(text, sizeof(text), "libelf error %d", error == 0 || error == -1 ? last_error : error);
    return text;
}
