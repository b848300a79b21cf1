/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* What the recorder and the BPF programs tell each other outside the ring; both sides and cffi. */
#ifndef MEMTRACK_STATE_H
#define MEMTRACK_STATE_H

enum adopt_pass {
    ADOPT_NONE = 0,
    ADOPT_PID = 1,      /* take in the process with the shown pid control.adopt_pid */
    ADOPT_CHILDREN = 2, /* take in children of members */
    ADOPT_CACHES = 3,   /* v5.5 to v6.1: add up what threads keep to themselves */
    ADOPT_SYNC = 4,     /* report the figures of every address space */
    ADOPT_LAST = 5,     /* and the peaks: nothing comes after them */
    ADOPT_SEEN = 6,     /* note of members that they are there */
};

/* A process of the tree. Keyed by the kernel's own tgid, which no namespace changes. */
struct process {
    uint64_t mm;     /* 0 while pending */
    uint64_t execs;  /* its task's self_exec_id as of the last that we know of */
    uint64_t leader; /* its first task, which is there for as long as the process is */
    uint32_t pid;    /* as shown */
    uint8_t state;   /* enum process_state */
    uint8_t unkept;  /* its address space has no room to remember that it is a user of it */
    uint8_t zero[2];
    uint32_t place; /* which of the spaces it uses, and one: 0 is none */
    uint32_t seen;  /* control.round of the last ADOPT_SEEN that came by, or of its start */
};

/* Decided by the recorder before load; constants for the verifier, which prunes by them. */
struct settings {
    uint64_t pid_ns_ino; /* the recorder's pid namespace: stat(2) of /proc/self/ns/pid */
    uint64_t ring_bytes;
    uint64_t ring_wakeup_bytes;   /* wake the consumer when this much waits */
    uint64_t ring_headroom_bytes; /* kept free of RSS and RMAP for what says who is who */
    uint32_t cpus;                /* possible, not online: a CPU may come up while we record */
    uint32_t page_shift;
    uint32_t buckets;            /* of the table of address spaces, a power of two */
    uint8_t counters_are_percpu; /* v6.2 and later */
    uint8_t initial_pid_ns;
    uint8_t file_rmap_nests; /* v6.6, v6.7: page_add_file_rmap is hooked too, and marks the task */
    uint8_t totals;          /* keep figures and peaks in the kernel too */
    uint8_t every_event;     /* a record per change; otherwise as the resolution says */
    uint8_t sums_known;      /* counters can be summed, in whichever shape they are */
    uint8_t coarse;          /* a record after resolution_pages or resolution_ns */
    uint8_t rmap;            /* the rmap layer is on */
    uint8_t exec_prepared;   /* sched_prepare_exec tells what exec charges for arguments */
    uint8_t zero[3];
    uint64_t resolution_pages; /* 0: no such bound */
    uint64_t resolution_ns;    /* 0: no such bound */
};

/* Written by the recorder. */
struct control {
    /* The recorder's thread (as its own namespace shows it) whose next child is a root; 0: none. */
    uint32_t spawner_tid;
    uint32_t pass; /* enum adopt_pass */
    uint32_t adopt_pid;
    uint32_t round; /* goes up by one with each report, so that an address space is in it once */
    /* With ADOPT_SYNC: programs were skipped, so that rmap sums begin anew from the counters. */
    uint32_t recount;
};

/* The largest sum of file, anon and shmem so far, in its parts, in pages. */
struct peak {
    int64_t sum_pages;
    int64_t pages[4]; /* by member; swap is what was swapped out then, no part of the sum */
    uint64_t at_ns;
    uint64_t processes; /* how many lived then */
};

/* What the tree holds and held, in pages. */
struct figures {
    int64_t pages[4]; /* by member */
    int64_t resident; /* file + anon + shmem */
    uint64_t rose_ns; /* when that last grew */
    struct peak peak; /* as of the last time that it fell: what is resident now may be more */
};

/* Written by the programs. */
struct tally {
    uint64_t lost_ring;         /* RSS, RMAP: the ring was full */
    uint64_t lost_lifecycle;    /* FORK, EXEC, EXIT, ADOPT, SYNC: the ring was full to the brim */
    uint64_t lost_told;         /* how many of these two the ring's last LOST had seen */
    uint64_t processes_full;    /* a process was not taken in: map full */
    uint64_t spaces_full;       /* an address space was not taken in: map full */
    uint64_t sharers_full;      /* an address space given up that may have had users */
    uint64_t sums_unsettled;    /* a counter changed all along: a batch off, at most */
    uint64_t bases_unsettled;   /* an rmap sum began at such counters, and may stay off */
    uint64_t members;           /* processes in the tree now */
    uint64_t adopted;           /* processes taken in by adopt_task */
    uint64_t execs_missed;      /* execs that sched_process_exec has not told */
    uint64_t migrations_missed; /* pages moved with both programs on it skipped */
    uint64_t put_off;           /* adopt_task had no room for a process, or for a report */
};

#endif
