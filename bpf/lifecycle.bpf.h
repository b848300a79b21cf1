/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Fork, exec, exit, adoption: the shape of the tree, and the absolute figures wherever one is known. */
#ifndef MEMTRACK_LIFECYCLE_BPF_H
#define MEMTRACK_LIFECYCLE_BPF_H

/* UAPI, clone(2). */
#define CLONE_VM 0x00000100
#define CLONE_THREAD 0x00010000

/* include/linux/sched/signal.h: the whole group exits with one code, whatever its leader said before. */
#define SIGNAL_GROUP_EXIT 0x00000004

/* include/linux/sched.h; a kernel thread may borrow an address space for a while. */
#define PF_KTHREAD 0x00200000

static __always_inline bool process_add(__u32 tgid, __u64 mm, __u32 pid, __u32 state)
{
    struct process fresh = {.mm = mm, .pid = pid, .state = state};

    if (bpf_map_update_elem(&processes, &tgid, &fresh, BPF_ANY)) {
        TALLY(processes_full, 1);
        return false;
    }
    if (state == PROCESS_MEMBER)
        TALLY(members, 1);
    return true;
}

/*
 * Runs in the parent, when the child is complete (its counters too: the copy of the page tables is done) but has not
 * been woken: nothing that the child does comes before this.
 */
SEC("tp_btf/task_newtask")
int BPF_PROG(task_newtask, struct task_struct *child, __u64 clone_flags)
{
    __u32 tgid = child->tgid, pid;
    __u64 mm = as_number(child->mm);
    struct process *parent;
    struct control *ctl;
    struct space *space;
    struct event *e;

    if (clone_flags & CLONE_THREAD)
        return 0;
    parent = process_of(bpf_get_current_pid_tgid() >> 32);
    if (!parent) {
        ctl = control();
        if (ctl && ctl->spawner_tid && ctl->spawner_tid == acting_tid())
            process_add(tgid, 0, shown_pid(child), PROCESS_PENDING);
        return 0;
    }
    if (parent->state == PROCESS_PENDING || !mm)
        return 0;
    pid = shown_pid(child);
    if (!process_add(tgid, mm, pid, PROCESS_MEMBER))
        return 0;
    e = lifecycle_reserve(EVENT_TYPE_FORK, pid);
    if (e) {
        e->fork.parent_pid = parent->pid;
        e->fork.flags = clone_flags & CLONE_VM ? EVENT_FORK_SHARES_MM : 0;
        bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
    }
    if (clone_flags & CLONE_VM)
        space = space_join(mm, tgid, pid);
    else
        space = space_open(mm, tgid, pid);
    if (space)
        report_start(space, 0);
    return 0;
}

/* Runs when the new image is in place: argv and envp, the stack, what the ELF loader touched, all in its counters. */
SEC("tp_btf/sched_process_exec")
int BPF_PROG(sched_process_exec, struct task_struct *task)
{
    __u32 tgid = task->tgid, pid;
    struct process *process = process_of(tgid);
    __u64 mm = as_number(task->mm), old_mm;
    struct space *space;
    struct event *e;

    if (!process)
        return 0;
    pid = process->pid;
    old_mm = process->mm;
    if (process->state == PROCESS_PENDING) {
        TALLY(members, 1);
        e = lifecycle_reserve(EVENT_TYPE_FORK, pid);
        if (e) {
            e->fork.parent_pid = shown_pid(task->real_parent);
            e->fork.flags = EVENT_FORK_SHARES_MM;
            bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
        }
    }
    if (old_mm)
        space_conclude(old_mm, tgid);
    e = lifecycle_reserve(EVENT_TYPE_EXEC, pid);
    if (e) {
        bpf_probe_read_kernel_str(e->exec.comm, sizeof(e->exec.comm), task->comm);
        bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
    }
    process->state = PROCESS_MEMBER;
    process->mm = mm;
    space = space_open(mm, tgid, pid);
    if (space)
        report_start(space, task);
    space = old_mm ? space_leave(old_mm, tgid) : 0;
    if (space)
        report_again(space, false);
    return 0;
}

/*
 * Every thread comes by. The last one takes the process off the map; should two see no live thread, only one of them
 * succeeds in that, so there is one EXIT. What a process held is what its events said: on kernels before v6.16 its
 * address space is gone by now.
 */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(sched_process_exit, struct task_struct *task)
{
    __u32 tgid = task->tgid, pid;
    struct process *process = process_of(tgid);
    struct space *space;
    struct event *e;
    bool pending;
    __u64 mm;

    if (!process || task->signal->live.counter)
        return 0;
    pid = process->pid;
    mm = process->mm;
    pending = process->state == PROCESS_PENDING;
    if (bpf_map_delete_elem(&processes, &tgid) || pending)
        return 0;
    space_conclude(mm, tgid);
    e = lifecycle_reserve(EVENT_TYPE_EXIT, pid);
    if (e) {
        e->exit.wait_status =
            task->signal->flags & SIGNAL_GROUP_EXIT ? task->signal->group_exit_code : task->group_leader->exit_code;
        bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
    }
    space = space_leave(mm, tgid);
    TALLY(members, -1); /* after the sum of the tree has fallen: a peak has the number of processes then */
    if (space)
        report_again(space, false);
    return 0;
}

static __always_inline void adopt(struct task_struct *task, __u32 tgid, __u64 mm)
{
    __u32 pid = shown_pid(task);
    struct space *space;
    struct event *e;

    if (!pid || !process_add(tgid, mm, pid, PROCESS_MEMBER))
        return;
    TALLY(adopted, 1);
    e = lifecycle_reserve(EVENT_TYPE_ADOPT, pid);
    if (e) {
        bpf_probe_read_kernel_str(e->adopt.comm, sizeof(e->adopt.comm), task->group_leader->comm);
        e->adopt.parent_pid = shown_pid(task->real_parent);
        bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
    }
    space = space_join(mm, tgid, pid);
    if (space)
        rmap_forget(space);
}

/*
 * The kernel walks all tasks, threads too, and the recorder says what to do with them. Any thread with an address
 * space stands for its process: a leader that has exited has none.
 */
SEC("iter/task")
int adopt_task(struct bpf_iter__task *ctx)
{
    struct task_struct *task = ctx->task;
    struct process *process;
    struct control *ctl;
    struct space *space;
    __u32 tgid;
    __u64 mm;

    ctl = control();
    if (!task || !ctl)
        return 0;
    mm = as_number(task->mm);
    if (!mm || task->flags & PF_KTHREAD)
        return 0;
    tgid = task->tgid;
    process = process_of(tgid);
    switch (ctl->pass) {
    case ADOPT_PID:
        if (!process && shown_pid(task) == ctl->adopt_pid)
            adopt(task, tgid, mm);
        break;
    case ADOPT_CHILDREN:
        if (!process && process_of(task->real_parent->tgid))
            adopt(task, tgid, mm);
        break;
    case ADOPT_CACHES:
        space = process ? space_of(mm) : 0;
        if (!space)
            break;
        if (space->cache_round != ctl->round) {
            space->cache_round = ctl->round;
            __builtin_memset(space->cached, 0, sizeof(space->cached));
        }
        for (__u32 member = 0; member < EVENT_MEMBERS; member++)
            space->cached[member] += settings.counters_are_percpu ? 0 : thread_cache(task, member);
        break;
    case ADOPT_SYNC:
        space = process ? space_of(mm) : 0;
        if (space && space->sync_round != ctl->round) {
            space->sync_round = ctl->round;
            emit_totals(space);
            report_again(space, ctl->recount);
        }
        break;
    }
    return 0;
}

#endif
