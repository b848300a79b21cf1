// SPDX-License-Identifier: MIT
/*
 * Equal pages merged by ksmd and unmerged again, by writing and by MADV_UNMERGEABLE: anonymous all
 * along, unless ksmd may use the zero page, which is in no counter.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"

#define SIZE MIB(16)
#define POLL_NS 50000000
#define POLLS_MAX 600 /* half a minute */

static long setting(const char *name) {
    char path[64] = "/sys/kernel/mm/ksm/", text[32] = "";
    int fd;

    fd = open(strcat(path, name), O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        skip("the kernel has no KSM");
    REQUIRE(read(fd, text, sizeof(text) - 1) > 0);
    close(fd);
    return atol(text);
}

static void fill(char *memory, int value) {
    memset(memory, value, SIZE);
}

/*
 * Merged pages: those that ksmd counts, or the ones it replaced by the zero page, which only the
 * oracle sees.
 */
static void await_merge(long before, bool zero) {
    const struct timespec pause = {.tv_nsec = POLL_NS};

    for (int poll = 0; poll < POLLS_MAX; poll++) {
        struct figures now;

        if (zero ? walk("thread-self", &now) && now.zero >= pages(SIZE)
                 : setting("pages_sharing") + setting("pages_shared") >= before + pages(SIZE))
            return;
        nanosleep(&pause, NULL);
    }
    skip("ksmd did not merge %ld pages within half a minute", pages(SIZE));
}

int main(int argc, char **argv) {
    bool zero = argc > 1 && !strcmp(argv[1], "zero");
    struct figures base = quiet("base");
    long before = setting("pages_sharing") + setting("pages_shared"), merged;
    char *memory = map_anon(SIZE);

    if (setting("run") != 1)
        skip("ksmd does not run");
    fill(memory, zero ? 0 : 0x5a);
    EXPECT_NET(quiet("filled"), base, .anon = pages(SIZE));
    if (madvise(memory, SIZE, MADV_MERGEABLE))
        skip("MADV_MERGEABLE: %s", strerror(errno));
    await_merge(before, zero);
    merged = zero ? 0 : pages(SIZE);
    EXPECT_NET(quiet("merged"), base, .anon = merged);

    write_pages(memory, SIZE / 4);
    EXPECT_NET(quiet("a quarter written"), base, .anon = zero ? pages(SIZE / 4) : pages(SIZE));

    REQUIRE(!madvise(memory, SIZE, MADV_UNMERGEABLE));
    quiet("unmerged"); /* whether zero pages are unmerged depends on the kernel */
    write_pages(memory, SIZE);
    EXPECT_NET(quiet("written"), base, .anon = pages(SIZE));

    unmap(memory, SIZE);
    EXPECT_NET(quiet("end"), base);
    return 0;
}
