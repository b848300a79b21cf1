// SPDX-License-Identifier: MIT
/*
 * Threads that fault and give back without a pause for so many seconds, more than a small ring
 * holds, and then rest.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "oracle.h"
#include "region.h"
#include "turns.h"

#define THREADS 3
#define SIZE MIB(4)       /* each */
#define MORE (MIB(1) / 2) /* few pages: the ring holds their events */
#define REST_S 2          /* in which a recorder notices what it lost, and asks anew */

static volatile bool resting;
static struct turn rested, leave;
static char *memory[THREADS];

static void *churn(void *mine) {
    while (!resting) {
        write_pages(mine, SIZE);
        REQUIRE(!madvise(mine, SIZE, MADV_DONTNEED));
    }
    write_pages(mine, SIZE);
    turn_give(rested);
    turn_take(leave);
    return NULL;
}

int main(int argc, char **argv) {
    unsigned seconds = argc > 1 ? (unsigned)atoi(argv[1]) : 3;
    pthread_t threads[THREADS];
    struct figures before;
    char *more;

    settle();
    rested = turn_new();
    leave = turn_new();
    for (int i = 0; i < THREADS; i++) {
        memory[i] = map_anon(SIZE);
        REQUIRE(!pthread_create(&threads[i], NULL, churn, memory[i]));
    }
    sleep(seconds);
    resting = true;
    for (int i = 0; i < THREADS; i++)
        turn_take(rested);
    settle();
    sleep(REST_S);
    before = quiet("rested");
    more = map_anon(MORE);
    write_pages(more, MORE);
    sleep(1);
    EXPECT_NET(quiet("more"), before, .anon = pages(MORE));
    for (int i = 0; i < THREADS; i++)
        turn_give(leave);
    for (int i = 0; i < THREADS; i++)
        REQUIRE(!pthread_join(threads[i], NULL));
    return 0;
}
