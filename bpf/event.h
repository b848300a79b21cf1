/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The event record: one layout, three readers (the BPF programs, the host C code, cffi). Fixed
 * widths, no implicit padding, every byte written. Types 1 to 13 and their payloads are a contract
 * with existing consumers and never change; memtrack's own types start at 64.
 */
#ifndef MEMTRACK_EVENT_H
#define MEMTRACK_EVENT_H

enum event_type {
    EVENT_TYPE_MALLOC = 1,
    EVENT_TYPE_FREE = 2,
    EVENT_TYPE_CALLOC = 3,
    EVENT_TYPE_REALLOC = 4,
    EVENT_TYPE_ALIGNED_ALLOC = 5,
    EVENT_TYPE_MMAP = 6,
    EVENT_TYPE_MUNMAP = 7,
    EVENT_TYPE_BRK = 8,
    EVENT_TYPE_RSS = 9,
    EVENT_TYPE_RMAP = 10,
    EVENT_TYPE_FORK = 11,
    EVENT_TYPE_EXEC = 12,
    EVENT_TYPE_EXIT = 13,
    EVENT_TYPE_SYNC = 64,
    EVENT_TYPE_LOST = 65,
    EVENT_TYPE_MARK = 66,
    EVENT_TYPE_ADOPT = 67,
    EVENT_TYPE_PEAK = 68,
};

/* The kernel's own numbering of the counters of an address space (enum MM_FILEPAGES and on). */
enum event_member {
    EVENT_MEMBER_FILE = 0,
    EVENT_MEMBER_ANON = 1,
    EVENT_MEMBER_SWAP = 2,
    EVENT_MEMBER_SHMEM = 3,
    EVENT_MEMBERS = 4,
};

enum event_fork_flag {
    EVENT_FORK_SHARES_MM = 1, /* the child runs in its parent's address space; nothing was copied */
};

struct event {
    uint8_t type;
    uint8_t zero[7];
    uint64_t time_ns; /* CLOCK_MONOTONIC */
    uint32_t pid;     /* the process charged, as the recorder's pid namespace shows it */
    uint32_t tid;     /* the task that acted */
    union {
        struct {
            uint64_t addr, size, reserved;
        } alloc; /* MALLOC, FREE, CALLOC, ALIGNED_ALLOC, MMAP, MUNMAP, BRK */
        struct {
            uint64_t old_addr, new_addr, size;
        } realloc;
        struct {
            int32_t member;
            uint32_t zero;
            uint64_t size_bytes;
            uint64_t reserved;
        } rss; /* RSS and SYNC */
        struct {
            int32_t member;
            uint32_t zero;
            int64_t delta_pages;
            uint64_t addr;
        } rmap;
        struct {
            uint32_t parent_pid;
            uint32_t flags;
            uint64_t reserved[2];
        } fork;
        struct {
            char comm[16];
            uint64_t reserved;
        } exec;
        struct {
            int32_t wait_status;
            uint32_t zero;
            uint64_t reserved[2];
        } exit;
        struct {
            uint64_t count;
            uint64_t reserved[2];
        } lost;
        struct {
            uint32_t kind; /* 0 instant, 1 begin, 2 end */
            char label[20];
        } mark;
        struct {
            char comm[16];
            uint32_t parent_pid;
            uint32_t zero;
        } adopt;
        struct {
            int32_t member;
            uint32_t processes; /* how many lived then; 0 in a process's own */
            uint64_t size_bytes;
            uint64_t at_ns;
        } peak; /* one member's part of the largest sum so far; pid 0 is the tree */
    };
};

#endif
