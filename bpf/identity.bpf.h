/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Pids as the recorder's own pid namespace shows them; 0 for who is not visible there. */
#ifndef MEMTRACK_IDENTITY_BPF_H
#define MEMTRACK_IDENTITY_BPF_H

static __always_inline __u32 shown_pid(struct task_struct *task)
{
    struct pid *pid;
    struct upid upid = {};

    if (settings.initial_pid_ns)
        return task->tgid;
    pid = task->signal->pids[PIDTYPE_TGID];
    if (pid->level < settings.pid_ns_level)
        return 0;
    bpf_probe_read_kernel(&upid, sizeof(upid),
                          (void *)pid + bpf_core_field_offset(struct pid, numbers) +
                              settings.pid_ns_level * sizeof(upid));
    return BPF_CORE_READ(upid.ns, ns.inum) == settings.pid_ns_ino ? upid.nr : 0;
}

static __always_inline __u32 acting_tid(void)
{
    struct bpf_pidns_info info = {};

    if (settings.initial_pid_ns)
        return (__u32)bpf_get_current_pid_tgid();
    bpf_get_ns_current_pid_tgid(settings.pid_ns_dev, settings.pid_ns_ino, &info, sizeof(info));
    return info.pid;
}

#endif
