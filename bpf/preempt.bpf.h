/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What follows from a task being preempted inside a program. Until v6.19 the kernel disabled
 * preemption around tracepoints; since Linux kernel commit a46023d5616e ("tracing: Guard
 * __DECLARE_TRACE() use of __DO_TRACE_CALL() with SRCU-fast", in v7.0) it does not. And it skips a
 * program that some task on the CPU is in the middle of. So where the kernel calls a tracepoint
 * with preemption enabled, one unlucky task hides from us what all others do on its CPU until it
 * runs again, which is milliseconds later.
 */
#ifndef MEMTRACK_PREEMPT_BPF_H
#define MEMTRACK_PREEMPT_BPF_H

/*
 * Fork, exec and exit are told so. Each has stand-ins, programs that do the same on the same hook
 * or one that follows before anything else happens to the process; the code finds out by itself
 * what has been dealt with. For an event to be missed, tasks must have been preempted inside all of
 * them at once, on one CPU. They are loaded where the kernel allows that. A tail call into one
 * program would be cheaper and must not be: since v6.13 programs may have a stack of their own on
 * each CPU, and the kernel relies on its check at the entry for nobody else being on it.
 */
#define STANDIN(hook, number, body)                                  \
    SEC("tp_btf/" #hook)                                             \
    int BPF_PROG(hook##_standin##number, struct task_struct *task) { \
        return body(task);                                           \
    }

/* Numbers are ABI. Of another ABI of the same machine (32 bits) nothing is known. */
static __always_inline bool called_execve(struct task_struct *task) {
    void *regs = (void *)bpf_task_pt_regs(task);
    struct pt_regs___x86_64_entry *x86_64 = regs;
    struct pt_regs___arm64_entry *arm64 = regs;

    if (bpf_core_field_exists(x86_64->orig_ax))
        return x86_64->orig_ax == 59 || x86_64->orig_ax == 322; /* execve, execveat */
    if (bpf_core_field_exists(arm64->syscallno))
        return arm64->syscallno == 221 || arm64->syscallno == 281;
    return false;
}

/*
 * While exec copies the arguments, it charges them to the address space that it will leave: of all
 * places where the counters of a process change, the only usual one in which it can be preempted,
 * and so hide everybody's changes on its CPU. So these are let go at once. sched_prepare_exec,
 * before exec's point of no return, has the sum with all of them. The kernel takes them off again
 * before it leaves the address space: nobody sees that happen to one that nobody else uses, but
 * another user (vfork) lives on with what the counter says then, so there it is recorded.
 * task_struct.in_execve, which is set between charging and the end, tells the two apart.
 */
static __noinline bool exec_charges(struct mm_struct *mm, __u32 member) {
    struct task_struct *task;

    if (!settings.exec_prepared || member != EVENT_MEMBER_ANON)
        return false;
    /* PREEMPT_RT, with preemption on wherever counters change */
    if (!bpf_core_field_exists(mm->mmap_lock.count))
        return false;
    if (mm->mmap_lock.count.counter)
        return false;
    task = bpf_get_current_task_btf();
    if (task->mm != mm || !called_execve(task))
        return false;
    if (mm->mm_users.counter == 1)
        return true;
    return bpf_core_field_exists(task->in_execve) && !BPF_CORE_READ_BITFIELD(task, in_execve);
}

#endif
