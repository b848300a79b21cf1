// SPDX-License-Identifier: MIT
/* Not of the tree: faults as hard as it can until its standard input ends. */
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include "region.h"

#define SIZE ((size_t)16 << 20)

int main(void) {
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};

    while (poll(&input, 1, 0) == 0) {
        char *memory = map_anon(SIZE);

        write_pages(memory, SIZE);
        unmap(memory, SIZE);
    }
    return 0;
}
