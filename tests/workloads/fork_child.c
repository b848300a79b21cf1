// SPDX-License-Identifier: MIT
/*
 * What a forked child starts with, before it has run: anonymous memory copied, file mappings mostly
 * not, shared memory not at all. Then it writes all of it, and unmaps all of it.
 */
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#define SIZE MIB(64)
#define SHARED MIB(16)
#define FILED MIB(16)

static void expect_anon(const char *point, struct figures now, long wanted) {
    if (now.anon != wanted)
        fail("%s: %ld pages are anon, not %ld", point, now.anon, wanted);
}

static void be_child(struct turn go, struct figures parent, char *memory, char *shared) {
    turn_take(go);
    expect_anon("child awake", quiet("child awake"), parent.anon);
    write_pages(memory, SIZE);
    expect_anon("child wrote", quiet("child wrote"), parent.anon);
    read_pages(shared, SHARED);
    if (quiet("child read shared memory").shmem != pages(SHARED))
        fail("the child's shared memory is not what it read");
    unmap(memory, SIZE);
    expect_anon("child unmapped", quiet("child unmapped"), parent.anon - pages(SIZE));
    unmap(shared, SHARED);
    quiet("child end");
    _exit(0);
}

int main(void) {
    int fd = make_file(FILED);
    struct figures base = quiet("base"), parent, child;
    char *memory = map_anon(SIZE), *shared = map_shared_anon(SHARED),
         *file = map_file(fd, FILED, true);
    struct turn go = turn_new();
    pid_t pid;

    write_pages(memory, SIZE);
    write_pages(shared, SHARED);
    read_pages(file, FILED);
    parent = quiet("parent");
    EXPECT_NET(parent, base, .anon = pages(SIZE), .file = pages(FILED), .shmem = pages(SHARED));

    pid = fork();
    REQUIRE(pid >= 0);
    if (!pid)
        be_child(go, parent, memory, shared);
    await_sleep(pid);
    child = quiet_of(pid, "child idle");
    expect_anon("child idle", child, parent.anon);
    if (child.shmem || child.file > base.file)
        fail("the child starts with %ld file and %ld shmem pages", child.file, child.shmem);
    quiet("parent of one");
    turn_give(go);
    await_end(pid, 0);
    EXPECT_NET(quiet("child gone"), parent);
    return 0;
}
