// SPDX-License-Identifier: MIT
/*
 * A light, a heavy and a light command one after the other: each has its own peak, and no other's.
 */
#include <unistd.h>

#include "oracle.h"
#include "turns.h"

int main(void) {
    quiet("base");
    await_end(spawn_workload("hold", (char *const[]){"hold", "8", NULL}), 0);
    await_end(spawn_workload("hold", (char *const[]){"hold", "300", NULL}), 0);
    await_end(spawn_workload("hold", (char *const[]){"hold", "8", NULL}), 0);
    quiet("end");
    return 0;
}
