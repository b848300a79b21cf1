// SPDX-License-Identifier: MIT
/* Threads that fault, give back and fault again all at once: when they rest, nothing is off. */
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#define THREADS 8
#define SIZE MIB(8) /* each */
#define ROUNDS 4

static struct turn go, done, leave;
static char *memory[THREADS];

static void *churn(void *mine) {
    turn_take(go);
    for (int round = 0; round < ROUNDS; round++) {
        write_pages(mine, SIZE);
        REQUIRE(!madvise(mine, round == ROUNDS - 1 ? SIZE / 2 : SIZE, MADV_DONTNEED));
    }
    turn_give(done);
    turn_take(leave);
    return NULL;
}

int main(void) {
    struct figures base;
    pthread_t threads[THREADS];

    quiet("root");
    go = turn_new();
    done = turn_new();
    leave = turn_new();
    for (int i = 0; i < THREADS; i++) {
        memory[i] = map_anon(SIZE);
        REQUIRE(!pthread_create(&threads[i], NULL, churn, memory[i]));
    }
    for (int i = 0; i < THREADS; i++)
        turn_give(go);
    for (int i = 0; i < THREADS; i++)
        turn_take(done);
    base = quiet("churned");
    for (int i = 0; i < THREADS; i++)
        unmap(memory[i], SIZE);
    base.anon -= pages(THREADS * SIZE / 2);
    EXPECT_NET(quiet("unmapped"), base);
    for (int i = 0; i < THREADS; i++)
        turn_give(leave);
    for (int i = 0; i < THREADS; i++)
        REQUIRE(!pthread_join(threads[i], NULL));
    quiet("end");
    return 0;
}
