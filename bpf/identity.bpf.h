/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Pids as the recorder's own pid namespace shows them; 0 for who is not visible there. */
#ifndef MEMTRACK_IDENTITY_BPF_H
#define MEMTRACK_IDENTITY_BPF_H

/* include/linux/pid_namespace.h: namespaces nest no deeper. */
#define MAX_PID_NS_LEVEL 32

/*
 * How deep the recorder's namespace is, once a process in it has been seen; its own files in /proc
 * do not say.
 */
__u32 pid_ns_level;

static __always_inline __u32 number_at(struct pid *pid, __u32 level) {
    struct upid upid = {};

    bpf_probe_read_kernel(
        &upid, sizeof(upid),
        (void *)pid + bpf_core_field_offset(struct pid, numbers) + level * sizeof(upid));
    return BPF_CORE_READ(upid.ns, ns.inum) == settings.pid_ns_ino ? upid.nr : 0;
}

/* A struct pid as the recorder's namespace shows it. */
static __noinline __u32 shown_number(__u64 address) {
    struct pid *pid = (void *)address;
    __u32 deepest = BPF_CORE_READ(pid, level), level = pid_ns_level, number;

    if (level && level <= deepest)
        return number_at(pid, level);
    for (level = 1; level <= MAX_PID_NS_LEVEL; level++) {
        if (level > deepest)
            break;
        number = number_at(pid, level);
        if (number) {
            pid_ns_level = level;
            return number;
        }
    }
    return 0;
}

static __always_inline __u32 shown_pid(struct task_struct *task) {
    return settings.initial_pid_ns ? task->tgid
                                   : shown_number((__u64)task->signal->pids[PIDTYPE_TGID]);
}

static __always_inline __u32 acting_tid(void) {
    struct task_struct *task;

    if (settings.initial_pid_ns)
        return (__u32)bpf_get_current_pid_tgid();
    task = (void *)bpf_get_current_task();
    return shown_number((__u64)BPF_CORE_READ(task, thread_pid));
}

#endif
