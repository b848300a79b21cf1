// SPDX-License-Identifier: GPL-2.0-only OR MIT
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>

#include "kernel_btf.h"

/*
 * BTF from a file is input like any other: a damaged one may chain types in a circle. No type of a
 * real kernel comes near these depths.
 */
#define MODIFIERS_MAX 32
#define NESTING_MAX 16

struct kernel_btf {
    struct btf *btf;
};

/* A caller's buffer, filled piece by piece; `err` sticks once a piece did not fit. */
struct text {
    char *at;
    size_t left;
    int err;
};

static struct text text__new(char *buffer, size_t size) {
    struct text text = {.at = buffer, .left = size, .err = size ? 0 : -ENOSPC};

    if (size)
        *buffer = '\0';
    return text;
}

__attribute__((format(printf, 2, 3))) static void text__add(struct text *text, const char *format,
                                                            ...) {
    va_list args;
    int length;

    if (text->err)
        return;
    va_start(args, format);
    length = vsnprintf(text->at, text->left, format, args);
    va_end(args);
    if (length < 0 || (size_t)length >= text->left) {
        text->err = -ENOSPC;
        return;
    }
    text->at += length;
    text->left -= (size_t)length;
}

static const char *name_of(const struct btf *btf, __u32 offset) {
    const char *name = btf__str_by_offset(btf, offset);

    return name ? name : "";
}

static const struct btf_type *skip_qualifiers(const struct btf *btf, __u32 id) {
    const struct btf_type *type = btf__type_by_id(btf, id);

    for (int depth = 0; type && (btf_is_mod(type) || btf_is_type_tag(type)); depth++) {
        if (depth == MODIFIERS_MAX)
            return NULL;
        type = btf__type_by_id(btf, type->type);
    }
    return type;
}

static const struct btf_type *skip_qualifiers_and_typedefs(const struct btf *btf, __u32 id) {
    const struct btf_type *type = skip_qualifiers(btf, id);

    for (int depth = 0; type && btf_is_typedef(type); depth++) {
        if (depth == MODIFIERS_MAX)
            return NULL;
        type = skip_qualifiers(btf, type->type);
    }
    return type;
}

/*
 * Describes a type as a C programmer names it, without qualifiers; of an array only the element's
 * tag is told.
 */
static void describe(const struct btf *btf, __u32 id, struct text *text) {
    const struct btf_type *type = skip_qualifiers(btf, id);
    int pointers = 0;

    for (; type && btf_is_ptr(type) && pointers < MODIFIERS_MAX; pointers++)
        type = type->type ? skip_qualifiers(btf, type->type) : NULL;
    if (!type) {
        text__add(text, "void");
    } else if (btf_is_array(type)) {
        const struct btf_type *element = skip_qualifiers(btf, btf_array(type)->type);

        text__add(text, "array %s", element ? name_of(btf, element->name_off) : "void");
    } else if (btf_is_func_proto(type)) {
        text__add(text, "function");
    } else {
        bool forward_union = btf_is_fwd(type) && btf_kflag(type);
        const char *tag = btf_is_union(type) || forward_union        ? "union "
                          : btf_is_struct(type) || btf_is_fwd(type)  ? "struct "
                          : btf_is_enum(type) || btf_is_enum64(type) ? "enum "
                                                                     : "";
        text__add(text, "%s%s", tag, name_of(btf, type->name_off));
    }
    if (pointers)
        text__add(text, " ");
    while (pointers-- > 0)
        text__add(text, "*");
}

struct kernel_btf *kernel_btf__open(const char *path, int *err) {
    /*
     * Whoever asks says what failed; libbpf's own lines would land in the middle of the traced
     * command's output.
     */
    libbpf_print_fn_t print = libbpf_set_print(NULL);
    struct kernel_btf *kernel = calloc(1, sizeof(*kernel));

    if (!kernel) {
        *err = -ENOMEM;
    } else {
        kernel->btf = path ? btf__parse(path, NULL) : btf__load_vmlinux_btf();
        /*
         * libbpf has errors of its own from 4000 on; all that it has for BTF say that this is none.
         */
        *err = kernel->btf ? 0 : errno >= 4000 ? -EINVAL : -errno;
        if (!kernel->btf) {
            free(kernel);
            kernel = NULL;
        }
    }
    libbpf_set_print(print);
    return kernel;
}

void kernel_btf__close(struct kernel_btf *kernel) {
    if (!kernel)
        return;
    btf__free(kernel->btf);
    free(kernel);
}

int kernel_btf__functions(const struct kernel_btf *kernel, const char *prefix, const char *part,
                          char *names, size_t size) {
    const struct btf *btf = kernel->btf;
    struct text text = text__new(names, size);
    size_t prefix_length = strlen(prefix);
    __u32 end = btf__type_cnt(btf);
    int count = 0;

    for (__u32 id = 1; id < end && !text.err; id++) {
        const struct btf_type *type = btf__type_by_id(btf, id);
        const char *name;

        if (!type || !btf_is_func(type))
            continue;
        name = name_of(btf, type->name_off);
        /*
         * Static functions of one name in several files are as many entries; the first is the one
         * that attaches.
         */
        if (strncmp(name, prefix, prefix_length) || !strstr(name + prefix_length, part) ||
            btf__find_by_name_kind(btf, name, BTF_KIND_FUNC) != (__s32)id)
            continue;
        text__add(&text, "%s%s", count++ ? "," : "", name);
    }
    return text.err ? text.err : count;
}

static const struct btf_type *func_proto(const struct btf *btf, const struct btf_type *func) {
    const struct btf_type *proto = btf__type_by_id(btf, func->type);

    return proto && btf_is_func_proto(proto) ? proto : NULL;
}

static int describe_params(const struct btf *btf, const struct btf_type *proto, char *buffer,
                           size_t size) {
    const struct btf_param *param = btf_params(proto);
    struct text text = text__new(buffer, size);

    for (int i = 0; i < btf_vlen(proto); i++)
        text__add(&text, "%s%s", i ? "," : "", name_of(btf, param[i].name_off));
    return text.err ? text.err : btf_vlen(proto);
}

int kernel_btf__func(const struct kernel_btf *kernel, const char *name, char *params, size_t size) {
    const struct btf *btf = kernel->btf;
    int id = btf__find_by_name_kind(btf, name, BTF_KIND_FUNC);
    const struct btf_type *proto;

    if (id < 0)
        return id;
    proto = func_proto(btf, btf__type_by_id(btf, id));
    return proto ? describe_params(btf, proto, params, size) : -EINVAL;
}

int kernel_btf__tracepoint(const struct kernel_btf *kernel, const char *name, char *params,
                           size_t size) {
    const struct btf *btf = kernel->btf;
    struct text text = text__new(params, size);
    const struct btf_type *type;
    const struct btf_param *param;
    char typedef_name[128];
    int id;

    /*
     * DECLARE_TRACE makes `typedef void (*btf_trace_NAME)(void *__data, ARGS)`; it is what tp_btf
     * attaches by.
     */
    if (snprintf(typedef_name, sizeof(typedef_name), "btf_trace_%s", name) >=
        (int)sizeof(typedef_name))
        return -ENAMETOOLONG;
    id = btf__find_by_name_kind(btf, typedef_name, BTF_KIND_TYPEDEF);
    if (id < 0)
        return id;
    type = skip_qualifiers_and_typedefs(btf, id);
    if (!type || !btf_is_ptr(type))
        return -EINVAL;
    type = skip_qualifiers_and_typedefs(btf, type->type);
    if (!type || !btf_is_func_proto(type) || btf_vlen(type) < 1)
        return -EINVAL;
    param = btf_params(type);
    for (int i = 1; i < btf_vlen(type); i++) {
        text__add(&text, "%s", i > 1 ? "," : "");
        describe(btf, param[i].type, &text);
    }
    return text.err ? text.err : btf_vlen(type) - 1;
}

static int describe_member(const struct btf *btf, const struct btf_type *type, const char *name,
                           struct text *text, int depth) {
    const struct btf_member *member = btf_members(type);

    if (depth == NESTING_MAX)
        return -ELOOP;
    for (int i = 0; i < btf_vlen(type); i++) {
        const char *member_name = name_of(btf, member[i].name_off);

        if (!strcmp(member_name, name)) {
            describe(btf, member[i].type, text);
            return text->err;
        }
        if (!*member_name) {
            const struct btf_type *inner = skip_qualifiers_and_typedefs(btf, member[i].type);
            int err = inner && btf_is_composite(inner)
                          ? describe_member(btf, inner, name, text, depth + 1)
                          : -ENOENT;

            if (err != -ENOENT)
                return err;
        }
    }
    return -ENOENT;
}

int kernel_btf__member(const struct kernel_btf *kernel, const char *type, const char *member,
                       char *type_name, size_t size) {
    struct text text = text__new(type_name, size);
    int id = btf__find_by_name_kind(kernel->btf, type, BTF_KIND_STRUCT);

    if (id < 0)
        return id;
    /* An empty name would find the first anonymous member, which is nobody's question. */
    if (!*member)
        return -EINVAL;
    return describe_member(kernel->btf, btf__type_by_id(kernel->btf, id), member, &text, 0);
}

static int try_attach(enum bpf_attach_type attach_type, int btf_id) {
    /* r0 = 0; exit. */
    static const struct bpf_insn insns[] = {
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0},
        {.code = BPF_JMP | BPF_EXIT},
    };
    LIBBPF_OPTS(bpf_prog_load_opts, opts, .expected_attach_type = attach_type,
                .attach_btf_id = (__u32)btf_id);
    int prog, link, err = 0;

    prog = bpf_prog_load(BPF_PROG_TYPE_TRACING, "memtrack_try", "GPL", insns,
                         sizeof(insns) / sizeof(*insns), &opts);
    if (prog < 0)
        return prog;
    link = bpf_raw_tracepoint_open(NULL, prog);
    if (link < 0)
        err = link;
    else
        close(link);
    close(prog);
    return err;
}

int kernel_btf__try_fentry(const struct kernel_btf *kernel, const char *func) {
    int id = btf__find_by_name_kind(kernel->btf, func, BTF_KIND_FUNC);

    return id < 0 ? id : try_attach(BPF_TRACE_FENTRY, id);
}

int kernel_btf__try_tp_btf(const struct kernel_btf *kernel, const char *tracepoint) {
    char name[128];
    int id;

    if (snprintf(name, sizeof(name), "btf_trace_%s", tracepoint) >= (int)sizeof(name))
        return -ENAMETOOLONG;
    id = btf__find_by_name_kind(kernel->btf, name, BTF_KIND_TYPEDEF);
    return id < 0 ? id : try_attach(BPF_TRACE_RAW_TP, id);
}
