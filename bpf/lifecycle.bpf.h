/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Fork, exec, exit, adoption: the shape of the tree, and the absolute figures wherever one is
 * known.
 */
#ifndef MEMTRACK_LIFECYCLE_BPF_H
#define MEMTRACK_LIFECYCLE_BPF_H

/* UAPI, clone(2). */
#define CLONE_VM 0x00000100
#define CLONE_THREAD 0x00010000

/*
 * include/linux/sched/signal.h: the whole group exits with one code, whatever its leader said
 * before.
 */
#define SIGNAL_GROUP_EXIT 0x00000004

/* include/linux/sched.h; a kernel thread may borrow an address space for a while. */
#define PF_KTHREAD 0x00200000

/* UAPI, asm-generic/errno-base.h. */
#define EEXIST 17

/* An adopted process's execs: whichever comes next is one that we have not seen. */
#define EXECS_UNKNOWN (~0ULL)

/*
 * Start times of processes that there was no room for, each by its tgid: task_newtask and its
 * stand-in come upon them.
 */
#define LEFT_OUT_SLOTS 256
__u64 left_out[LEFT_OUT_SLOTS];

static __always_inline void leave_out(__u32 tgid, __u64 started_ns) {
    __u64 *slot = &left_out[tgid % LEFT_OUT_SLOTS];

    if (*slot == started_ns)
        return;
    *slot = started_ns;
    TALLY(processes_full, 1);
}

/*
 * Returns 0 where there is no room, or where the process is known already: from another program on
 * the fork, or because a child was adopted meanwhile. `started_ns` of a process that is only now
 * offered; 0 if it will be again.
 */
static __noinline struct process *process_add(__u32 tgid, struct process *fresh, __u64 started_ns) {
    struct control *ctl = control();
    long error;

    fresh->seen = ctl ? ctl->round : 0;
    error = bpf_map_update_elem(&processes, &tgid, fresh, BPF_NOEXIST);

    if (error) {
        if (error != -EEXIST && started_ns)
            leave_out(tgid, started_ns);
        else if (error != -EEXIST)
            TALLY(put_off, 1);
        return 0;
    }
    if (fresh->state == PROCESS_MEMBER)
        TALLY(members, 1);
    return process_of(tgid);
}

/*
 * What no program on exec has seen. One that fails past its point of no return looks the same: the
 * loader knows better.
 */
static __always_inline void count_execs(struct process *process, __u64 seen_execs) {
    if (process->execs != EXECS_UNKNOWN && seen_execs > process->execs)
        TALLY(execs_missed, seen_execs - process->execs);
}

/*
 * Runs in the parent, when the child is complete (its counters too: the copy of the page tables is
 * done) but has not been woken: nothing that the child does comes before this.
 */
static __always_inline int forked(struct task_struct *child, __u64 clone_flags) {
    __u32 tgid = child->tgid, pid;
    __u64 mm = as_number(child->mm);
    struct process fresh = {.execs = child->self_exec_id, .leader = as_number(child)};
    struct process *parent, *process;
    struct control *ctl;
    struct space *space;
    struct event *e;

    if (clone_flags & CLONE_THREAD)
        return 0;
    parent = process_of(bpf_get_current_pid_tgid() >> 32);
    if (!parent) {
        ctl = control();
        if (ctl && ctl->spawner_tid && ctl->spawner_tid == acting_tid()) {
            fresh.state = PROCESS_PENDING;
            fresh.pid = shown_pid(child);
            process_add(tgid, &fresh, child->start_time);
        }
        return 0;
    }
    if (parent->state == PROCESS_PENDING || !mm)
        return 0;
    pid = shown_pid(child);
    fresh.state = PROCESS_MEMBER;
    fresh.mm = mm;
    fresh.pid = pid;
    process = process_add(tgid, &fresh, child->start_time);
    if (!process)
        return 0;
    e = lifecycle_reserve(EVENT_TYPE_FORK, pid);
    if (e) {
        e->fork.parent_pid = parent->pid;
        e->fork.flags = clone_flags & CLONE_VM ? EVENT_FORK_SHARES_MM : 0;
        lifecycle_submit(e);
    }
    if (!(clone_flags & CLONE_VM))
        space = space_bring(process, mm, tgid);
    else
        space = space_join(mm, tgid) ? space_used_by(process) : 0;
    if (space)
        report_start(space, 0);
    else if (!process->place)
        TALLY(spaces_full, 1);
    return 0;
}

SEC("tp_btf/task_newtask")
int BPF_PROG(task_newtask, struct task_struct *child, __u64 clone_flags) {
    return forked(child, clone_flags);
}

/*
 * The parent is about to wake the child, with interrupts off: what it sees is not to be preempted.
 */
SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(task_newtask_standin, struct task_struct *child) {
    struct task_struct *parent = bpf_get_current_task_btf();
    __u64 thread = child->tgid != child->pid ? CLONE_THREAD : 0;

    return forked(child, thread | (child->mm == parent->mm ? CLONE_VM : 0));
}

/*
 * Runs when the new image is in place: argv and envp, the stack, what the ELF loader touched, all
 * in its counters.
 */
static __always_inline int execed(struct task_struct *task) {
    __u32 tgid = task->tgid, pid;
    struct process *process = process_of(tgid);
    __u64 mm = as_number(task->mm);
    struct space *space, *old;
    struct event *e;
    bool unkept;

    if (!process || process->execs == task->self_exec_id)
        return 0;
    count_execs(process, task->self_exec_id - 1);
    process->execs = task->self_exec_id;
    process->leader = as_number(task);
    pid = process->pid;
    old = space_used_by(process);
    if (process->state == PROCESS_PENDING) {
        TALLY(members, 1);
        e = lifecycle_reserve(EVENT_TYPE_FORK, pid);
        if (e) {
            e->fork.parent_pid = shown_pid(task->real_parent);
            e->fork.flags = EVENT_FORK_SHARES_MM;
            lifecycle_submit(e);
        }
    }
    space_conclude(old, tgid, false, 0);
    e = lifecycle_reserve(EVENT_TYPE_EXEC, pid);
    if (e) {
        bpf_probe_read_kernel_str(e->exec.comm, sizeof(e->exec.comm), task->comm);
        lifecycle_submit(e);
    }
    process->state = PROCESS_MEMBER;
    process->place = 0;
    process->mm = mm;
    unkept = process->unkept;
    process->unkept = 0;
    /* Before the new one counts: the two together are no sum that ever was. */
    if (old && !space_leave(old->place, tgid, unkept))
        old = 0;
    space = space_bring(process, mm, tgid);
    if (space)
        report_start(space, task);
    else
        TALLY(spaces_full, 1);
    if (old)
        report_again(old, false);
    return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(sched_process_exec, struct task_struct *task) {
    return execed(task);
}

STANDIN(sched_process_exec, 1, execed)
STANDIN(sched_process_exec, 2, execed)

/*
 * Every thread comes by. The last one takes the process off the map; should two see no live thread,
 * only one of them succeeds in that, so there is one EXIT. What a process held is what its events
 * said: on kernels before v6.16 its address space is gone by now.
 */
static __always_inline int exited(struct task_struct *task) {
    __u32 tgid = task->tgid, pid, status;
    struct process *process = process_of(tgid);
    struct space *space;
    struct event *e;
    bool pending, unkept;

    if (!process || task->signal->live.counter)
        return 0;
    count_execs(process, task->self_exec_id);
    pid = process->pid;
    space = space_used_by(process);
    pending = process->state == PROCESS_PENDING;
    unkept = process->unkept;
    if (bpf_map_delete_elem(&processes, &tgid) || pending)
        return 0;
    status = task->signal->flags & SIGNAL_GROUP_EXIT ? task->signal->group_exit_code
                                                     : task->group_leader->exit_code;
    e = space_conclude(space, tgid, true, status) ? 0 : lifecycle_reserve(EVENT_TYPE_EXIT, pid);
    if (e) {
        e->exit.wait_status = status;
        lifecycle_submit(e);
    }
    if (space && !space_leave(space->place, tgid, unkept))
        space = 0;
    /* after the sum of the tree has fallen: a peak has the number of processes then */
    TALLY(members, -1);
    if (space)
        report_again(space, false);
    return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(sched_process_exit, struct task_struct *task) {
    return exited(task);
}

STANDIN(sched_process_exit, 1, exited)
STANDIN(sched_process_exit, 2, exited)

/*
 * The process may exec or exit meanwhile. If its own hooks looked for it before it was added, then
 * we find here that its last thread has gone, or, below, that it has another address space by now;
 * otherwise they take care of it.
 */
static __noinline struct process *adopt_process(struct task_struct *task, __u32 tgid, __u64 mm,
                                                __u32 pid) {
    struct process fresh = {.mm = mm,
                            .execs = EXECS_UNKNOWN,
                            .leader = as_number(task->group_leader),
                            .pid = pid,
                            .state = PROCESS_MEMBER};
    struct process *process = process_add(tgid, &fresh, 0);

    if (process && !task->signal->live.counter && !bpf_map_delete_elem(&processes, &tgid)) {
        TALLY(members, -1);
        return 0;
    }
    return process;
}

/*
 * Where the process brings the address space into the tree in the middle of its life, rmap sums
 * have no base yet.
 */
static __always_inline void join_late(__u64 mm, __u32 tgid) {
    __u32 place = space_join(mm, tgid);
    struct space *space = place ? space_at(place - 1) : 0;

    if (space)
        rmap_forget(space);
}

static __always_inline void adopt_space(struct task_struct *task, struct process *process,
                                        __u32 tgid, __u64 mm) {
    struct space *space;
    __u64 now;

    join_late(mm, tgid);
    now = as_number(task->mm);
    if (now == mm && task->signal->live.counter)
        return;
    space = space_of(mm);
    if (space)
        space_leave(space->place, tgid, process->unkept);
    if (now && process->mm == mm)
        process->mm = now;
    if (now)
        join_late(process->mm, tgid);
}

/*
 * There was no room for the address space of a process that belongs to the tree: there may be now.
 */
static __noinline void adopt_left_out(struct process *process, __u32 tgid, __u64 mm) {
    __u32 zero = 0;
    struct tally *counts = bpf_map_lookup_elem(&tally_map, &zero);

    if (!counts || !counts->spaces_full || process->place || process->mm != mm)
        return;
    join_late(mm, tgid);
    if (!process->place)
        TALLY(put_off, 1);
}

/* The record is reserved first, so that none of the process's own hooks comes before it. */
static __always_inline void adopt(struct task_struct *task, __u32 tgid, __u64 mm) {
    __u32 pid = shown_pid(task);
    struct process *process;
    struct event *e;

    if (!pid || !task->signal->live.counter)
        return;
    e = lifecycle_reserve(EVENT_TYPE_ADOPT, pid);
    if (!e) {
        process = adopt_process(task, tgid, mm, pid);
    } else {
        bpf_probe_read_kernel_str(e->adopt.comm, sizeof(e->adopt.comm), task->group_leader->comm);
        e->adopt.parent_pid = shown_pid(task->real_parent);
        process = adopt_process(task, tgid, mm, pid);
        if (process)
            lifecycle_submit(e);
        else
            bpf_ringbuf_discard(e, BPF_RB_NO_WAKEUP);
    }
    if (!process)
        return;
    TALLY(adopted, 1);
    adopt_space(task, process, tgid, mm);
}

/* What that takes, with what the ring adds to each sample: three times four records. */
#define REPORT_BYTES 1024

/*
 * The figures of one address space, once a round; where the ring has no room for them now, in
 * another walk.
 */
static __always_inline void report(struct process *process, __u64 mm, __u32 tgid,
                                   struct control *ctl) {
    struct space *space = space_of(mm);

    /* There was no room for it, or nobody was left that it was remembered for. */
    if (process->mm == mm && (!space || process->place != space->place + 1)) {
        join_late(mm, tgid);
        space = space_of(mm);
    }
    if (!space || space->sync_round == ctl->round)
        return;
    if (bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA) + REPORT_BYTES > settings.ring_bytes) {
        TALLY(put_off, 1);
        return;
    }
    space->sync_round = ctl->round;
    report_again(space, ctl->recount);
    /* of this round: threads go on, and what comes later must not add it */
    if (!settings.counters_are_percpu)
        __builtin_memset(space->cached, 0, sizeof(space->cached));
    if (settings.every_event || settings.coarse || ctl->pass == ADOPT_LAST)
        emit_totals(space, false, 0);
}

/*
 * The kernel walks all tasks, threads too, and the recorder says what to do with them. Any thread
 * with an address space stands for its process: a leader that has exited has none.
 */
SEC("iter/task")
int adopt_task(struct bpf_iter__task *ctx) {
    struct task_struct *task = ctx->task;
    struct process *process, *parent;
    struct control *ctl;
    struct space *space;
    __u32 tgid;
    __u64 mm;

    ctl = control();
    if (!task || !ctl)
        return 0;
    tgid = task->tgid;
    process = process_of(tgid);
    if (ctl->pass == ADOPT_SEEN && process)
        process->seen = ctl->round;
    mm = as_number(task->mm);
    if (!mm || task->flags & PF_KTHREAD)
        return 0;
    switch (ctl->pass) {
        case ADOPT_PID:
            if (!process && shown_pid(task) == ctl->adopt_pid)
                adopt(task, tgid, mm);
            break;
        case ADOPT_CHILDREN:
            if (process)
                adopt_left_out(process, tgid, mm);
            parent = process ? 0 : process_of(task->real_parent->tgid);
            if (parent && parent->state == PROCESS_MEMBER)
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
                space->cached[member] +=
                    settings.counters_are_percpu ? 0 : thread_cache(task, member);
            break;
        case ADOPT_SYNC:
        case ADOPT_LAST:
            if (process && process->state == PROCESS_MEMBER)
                report(process, mm, tgid, ctl);
            break;
    }
    return 0;
}

#endif
