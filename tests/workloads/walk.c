// SPDX-License-Identifier: MIT
/*
 * Two views, both of the page tables and neither of the counters:
 *
 * - pagemap names the page frame behind every address, /proc/kpageflags says what that page is. The
 * class follows the kernel's mm_counter(): anonymous first (copied private file pages and KSM pages
 * are), then swap-backed means shmem, else file.
 * - smaps has Rss and Anonymous per mapping; whether the rest is shmem follows from the device that
 * the mapping's file is on.
 *
 * No allocation and no stdio: walking must leave the process as it found it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "oracle.h"
#include "walk.h"

/* Documentation/admin-guide/mm/pagemap.rst; the numbers are ABI. */
#define PAGEMAP_PRESENT (1ULL << 63)
#define PAGEMAP_SWAPPED (1ULL << 62)
#define PAGEMAP_FILE_OR_SHARED (1ULL << 61)
#define PAGEMAP_GUARD (1ULL << 58)
#define PAGEMAP_UFFD_WP (1ULL << 57)
#define PAGEMAP_PFN ((1ULL << 55) - 1)
#define KPF_ANON (1ULL << 12)
#define KPF_SWAPBACKED (1ULL << 14)
#define KPF_COMPOUND_HEAD (1ULL << 15)
#define KPF_COMPOUND_TAIL (1ULL << 16)
#define KPF_THP (1ULL << 22)
#define KPF_ZERO_PAGE (1ULL << 24)

/* include/uapi/linux/magic.h */
#define TMPFS_SUPER_MAGIC 0x01021994

#define TEXT_BYTES 16384
#define MAPPINGS_MAX 8192
#define SHMEM_DEVICES_MAX 64
#define ENTRIES 4096
#define AHEAD_MAX 64

struct mapping {
    uint64_t start, end;
    bool hugetlb;
    bool empty; /* a reservation, of which some programs have terabytes */
};

static struct mapping mappings[MAPPINGS_MAX];
static int mapping_count;
static dev_t shmem_devices[SHMEM_DEVICES_MAX];
static int shmem_device_count;
static uint64_t entries[ENTRIES];
static uint64_t ahead[AHEAD_MAX], ahead_pfn;
static size_t ahead_count;
static uint64_t last_pfn;
static bool last_swap_backed;
static int page_flags = -1; /* /proc/kpageflags */

long page_size(void) {
    static long size;

    if (!size)
        size = sysconf(_SC_PAGESIZE);
    return size;
}

bool walk_sees_page_flags(void) {
    return page_flags >= 0;
}

static int open_of(const char *who, const char *file) {
    char path[64] = "/proc/";

    strcat(path, who);
    strcat(path, "/");
    strcat(path, file);
    return open(path, O_RDONLY | O_CLOEXEC);
}

/*
 * Calls `take` for each line of a text in /proc, without its newline. Lines longer than the buffer
 * do not occur.
 */
static bool each_line(int fd, void (*take)(char *line, void *context), void *context) {
    static char text[TEXT_BYTES + 1];
    size_t used = 0;
    ssize_t got;

    if (fd < 0)
        return false;
    while ((got = read(fd, text + used, TEXT_BYTES - used)) > 0) {
        char *line = text, *newline;

        used += (size_t)got;
        text[used] = '\0';
        while ((newline = strchr(line, '\n'))) {
            *newline = '\0';
            take(line, context);
            line = newline + 1;
        }
        used -= (size_t)(line - text);
        memmove(text, line, used);
    }
    close(fd);
    return got == 0;
}

static bool starts_with(const char *text, const char *prefix) {
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* "  1234 kB" in pages. */
static long pages_of_kib(const char *text) {
    return strtol(text, NULL, 10) * 1024 / page_size();
}

/*
 * Shmem: tmpfs mounts, and the kernel's own mount behind memfd, shared anonymous memory and System
 * V segments.
 */
static void shmem_device_add(dev_t device) {
    if (shmem_device_count < SHMEM_DEVICES_MAX)
        shmem_devices[shmem_device_count++] = device;
}

static bool is_shmem_device(dev_t device) {
    for (int i = 0; i < shmem_device_count; i++)
        if (shmem_devices[i] == device)
            return true;
    return false;
}

static void find_kernel_shmem_device(void) {
    struct stat memory;
    int fd = memfd_create("device", MFD_CLOEXEC);

    if (fd < 0 || fstat(fd, &memory))
        fail("cannot find the device of memfds: %s", strerror(errno));
    shmem_device_add(memory.st_dev);
    close(fd);
}

/* "36 35 98:0 /root /mount-point options - type source options" */
static void take_mount(char *line, void *context) {
    char *field = line, *type;
    unsigned int device_major, device_minor;
    struct statfs root;

    (void)context;
    for (int skip = 0; skip < 2; skip++)
        field = strchr(field, ' ') + 1;
    device_major = (unsigned int)strtoul(field, &field, 10);
    device_minor = (unsigned int)strtoul(field + 1, &field, 10);
    type = strstr(field, " - ");
    if (!type)
        return;
    type += 3;
    /* The first root of an initramfs is called rootfs whichever of tmpfs and ramfs it is. */
    if (starts_with(type, "tmpfs ") || starts_with(type, "devtmpfs ") ||
        (starts_with(type, "rootfs ") && !statfs("/", &root) && root.f_type == TMPFS_SUPER_MAGIC))
        shmem_device_add(makedev(device_major, device_minor));
}

struct smaps {
    struct figures figures;
    long rss, anonymous, swap;
    long hugetlb;
    bool shmem;
    bool overflow;
};

static void take_mapping(char *line) {
    struct mapping *mapping = &mappings[mapping_count++];
    char *end;

    mapping->start = strtoull(line, &end, 16);
    mapping->end = strtoull(end + 1, NULL, 16);
    mapping->hugetlb = false;
    mapping->empty = strstr(end, " ---p ") != NULL;
}

/* "start-end perms offset major:minor inode path" */
static bool mapping_is_shmem(const char *line) {
    unsigned int device_major, device_minor;
    char *end;

    for (int skip = 0; skip < 3; skip++)
        line = strchr(line, ' ') + 1;
    device_major = (unsigned int)strtoul(line, &end, 16);
    device_minor = (unsigned int)strtoul(end + 1, &end, 16);
    return is_shmem_device(makedev(device_major, device_minor));
}

static void take_smaps(char *line, void *context) {
    struct smaps *smaps = context;

    /* Fields begin with a capital letter, mappings with a lower-case hexadecimal digit. */
    if (*line < 'A' || *line > 'Z') {
        if (mapping_count == MAPPINGS_MAX) {
            smaps->overflow = true;
            return;
        }
        take_mapping(line);
        smaps->shmem = mapping_is_shmem(line);
        smaps->rss = smaps->anonymous = smaps->swap = smaps->hugetlb = 0;
    } else if (starts_with(line, "Rss:")) {
        smaps->rss = pages_of_kib(line + 4);
    } else if (starts_with(line, "Anonymous:")) {
        smaps->anonymous = pages_of_kib(line + 10);
    } else if (starts_with(line, "Swap:")) {
        smaps->swap = pages_of_kib(line + 5);
    } else if (starts_with(line, "Shared_Hugetlb:")) {
        smaps->hugetlb += pages_of_kib(line + 15);
    } else if (starts_with(line, "Private_Hugetlb:")) {
        smaps->hugetlb += pages_of_kib(line + 16);
    } else if (starts_with(line, "VmFlags:")) { /* the last of a mapping */
        struct figures *figures = &smaps->figures;

        if (strstr(line, " ht")) {
            mappings[mapping_count - 1].hugetlb = true;
            figures->hugetlb += smaps->hugetlb;
            return;
        }
        if (smaps->rss || smaps->swap)
            mappings[mapping_count - 1].empty = false;
        figures->anon += smaps->anonymous;
        *(smaps->shmem ? &figures->shmem : &figures->file) += smaps->rss - smaps->anonymous;
        figures->swap += smaps->swap;
    }
}

/*
 * Reads on ahead while frames follow one another, as those of a fresh boot and of large folios do;
 * elsewhere neighbours in the address space are seldom neighbours in memory, and each entry costs.
 */
static uint64_t flags_of(uint64_t pfn) {
    if (pfn - ahead_pfn >= ahead_count) {
        size_t want = ahead_count && pfn == ahead_pfn + ahead_count ? 2 * ahead_count : 1;
        ssize_t got;

        if (want > AHEAD_MAX)
            want = AHEAD_MAX;
        got = pread(page_flags, ahead, want * sizeof(*ahead), (off_t)(pfn * sizeof(*ahead)));
        if (got < (ssize_t)sizeof(*ahead)) {
            ahead_count = 0;
            return 0;
        }
        ahead_pfn = pfn;
        ahead_count = (size_t)got / sizeof(*ahead);
    }
    return ahead[pfn - ahead_pfn];
}

/* Older kernels report a tail page's own flags, which lack what only the head has. */
static bool is_swap_backed(uint64_t pfn, uint64_t flags) {
    bool same_folio = (flags & KPF_COMPOUND_TAIL) && pfn == last_pfn + 1;

    last_pfn = pfn;
    if (same_folio)
        return last_swap_backed;
    while (flags & KPF_COMPOUND_TAIL)
        flags = flags_of(--pfn);
    last_swap_backed = flags & KPF_SWAPBACKED;
    return last_swap_backed;
}

static void classify(uint64_t entry, bool hugetlb, struct figures *figures) {
    uint64_t pfn = entry & PAGEMAP_PFN, flags;

    if (hugetlb) {
        figures->hugetlb += !!(entry & PAGEMAP_PRESENT);
        return;
    }
    if (entry & PAGEMAP_SWAPPED) {
        /* Markers left by userfaultfd and guard regions look like swap entries and are none. */
        figures->swap += !(entry & (PAGEMAP_GUARD | PAGEMAP_UFFD_WP));
        return;
    }
    if (!(entry & PAGEMAP_PRESENT))
        return;
    flags = flags_of(pfn);
    if (flags & KPF_ZERO_PAGE)
        figures->zero++;
    else if (flags & KPF_ANON)
        figures->anon++;
    else if (!(entry & PAGEMAP_FILE_OR_SHARED) &&
             !(flags & KPF_THP)) /* old kernels lack the bit for huge pages */
        /* vm_normal_page() has no page here */
        figures->special++;
    else if (is_swap_backed(pfn, flags))
        figures->shmem++;
    else
        figures->file++;
}

static bool walk_pagemap(const char *who, struct figures *figures) {
    uint64_t size = (uint64_t)page_size();
    int fd = open_of(who, "pagemap");
    bool whole = fd >= 0;

    for (int i = 0; whole && i < mapping_count; i++) {
        const struct mapping *mapping = &mappings[i];
        uint64_t page = mapping->start / size, last = mapping->end / size;

        /* the vsyscall page is in no process's page tables */
        if (mapping->empty || mapping->start >> 63)
            continue;
        while (page < last) {
            uint64_t want = last - page < ENTRIES ? last - page : ENTRIES;
            ssize_t got =
                pread(fd, entries, want * sizeof(*entries), (off_t)(page * sizeof(*entries)));

            if (got <= 0) {
                whole = false;
                break;
            }
            for (ssize_t at = 0; at < got / (ssize_t)sizeof(*entries); at++)
                classify(entries[at], mapping->hugetlb, figures);
            page += (uint64_t)got / sizeof(*entries);
        }
    }
    if (fd >= 0)
        close(fd);
    return whole;
}

static bool same(const struct figures *pagemap, const struct figures *smaps) {
    return pagemap->file == smaps->file && pagemap->anon == smaps->anon &&
           pagemap->shmem == smaps->shmem && pagemap->hugetlb == smaps->hugetlb;
}

/* The zero page's pfn is seen only with CAP_SYS_ADMIN; without it every pfn reads 0. */
static bool sees_page_frames(void) {
    uint64_t size = (uint64_t)page_size(), entry = 0;
    static volatile char present = 1;
    int fd = open_of("self", "pagemap");

    present = 2;
    if (fd >= 0) {
        if (pread(fd, &entry, sizeof(entry), (off_t)((uintptr_t)&present / size * sizeof(entry))) <
            0)
            entry = 0;
        close(fd);
    }
    return entry & PAGEMAP_PFN;
}

static void start(void) {
    static bool started;

    if (started)
        return;
    started = true;
    find_kernel_shmem_device();
    if (sees_page_frames())
        page_flags = open("/proc/kpageflags", O_RDONLY | O_CLOEXEC);
}

bool walk(const char *who, struct figures *out) {
    struct smaps smaps = {0};
    struct figures pagemap = {0};

    start();
    shmem_device_count = 1; /* mounts come and go, the kernel's own stays */
    if (!each_line(open_of(who, "mountinfo"), take_mount, NULL) &&
        !each_line(open_of("self", "mountinfo"), take_mount, NULL))
        return false;
    mapping_count = 0;
    if (!each_line(open_of(who, "smaps"), take_smaps, &smaps) || smaps.overflow)
        return false;
    if (!walk_sees_page_flags()) {
        *out = smaps.figures;
        return true;
    }
    ahead_count = last_pfn = 0;
    if (!walk_pagemap(who, &pagemap))
        return false;
    *out = pagemap;
    return same(&pagemap, &smaps.figures);
}

static void take_status(char *line, void *context) {
    struct counters *counters = context;

    if (starts_with(line, "RssAnon:"))
        counters->anon = pages_of_kib(line + 8);
    else if (starts_with(line, "RssFile:"))
        counters->file = pages_of_kib(line + 8);
    else if (starts_with(line, "RssShmem:"))
        counters->shmem = pages_of_kib(line + 9);
    else if (starts_with(line, "VmSwap:"))
        counters->swap = pages_of_kib(line + 7);
    else if (starts_with(line, "Threads:"))
        counters->threads = strtol(line + 8, NULL, 10);
}

void read_counters(const char *who, struct counters *out) {
    memset(out, 0, sizeof(*out));
    each_line(open_of(who, "status"), take_status, out);
}
