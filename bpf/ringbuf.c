// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The layout is the kernel's: one page with the consumer's position, one with the producer's, then
 * the data, mapped twice in a row so that a record never wraps. A record starts with 8 bytes: its
 * length and two flags, and an offset that is the kernel's own business.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include <linux/bpf.h>

#include "ringbuf.h"

struct ringbuf {
    uint64_t *consumer;
    const uint64_t *producer;
    const uint8_t *data;
    size_t page, size;
    int epoll_fd, wake_fd;
};

void ringbuf__close(struct ringbuf **handle) {
    struct ringbuf *ring = *handle;

    *handle = NULL;
    if (!ring)
        return;
    if (ring->consumer)
        munmap(ring->consumer, ring->page);
    if (ring->producer)
        munmap((void *)ring->producer, ring->page + 2 * ring->size);
    if (ring->epoll_fd >= 0)
        close(ring->epoll_fd);
    if (ring->wake_fd >= 0)
        close(ring->wake_fd);
    free(ring);
}

static int ringbuf_map(struct ringbuf *ring, int map_fd) {
    void *area = mmap(NULL, ring->page, PROT_READ | PROT_WRITE, MAP_SHARED, map_fd, 0);

    if (area == MAP_FAILED)
        return -errno;
    ring->consumer = area;
    area = mmap(NULL, ring->page + 2 * ring->size, PROT_READ, MAP_SHARED, map_fd, ring->page);
    if (area == MAP_FAILED)
        return -errno;
    ring->producer = area;
    ring->data = (const uint8_t *)area + ring->page;
    return 0;
}

static int ringbuf_watch(struct ringbuf *ring, int map_fd) {
    /*
     * Edge-triggered: data alone must not end a wait, or the consumer would never sleep while there
     * is any.
     */
    struct epoll_event data = {.events = EPOLLIN | EPOLLET};
    struct epoll_event wake = {.events = EPOLLIN, .data.u32 = 1};

    ring->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    ring->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (ring->epoll_fd < 0 || ring->wake_fd < 0 ||
        epoll_ctl(ring->epoll_fd, EPOLL_CTL_ADD, map_fd, &data) ||
        epoll_ctl(ring->epoll_fd, EPOLL_CTL_ADD, ring->wake_fd, &wake))
        return -errno;
    return 0;
}

int ringbuf__open(struct ringbuf **out, int map_fd, size_t size) {
    struct ringbuf *ring = calloc(1, sizeof(*ring));
    int err;

    *out = NULL;
    if (!ring)
        return -ENOMEM;
    ring->epoll_fd = ring->wake_fd = -1;
    ring->page = (size_t)sysconf(_SC_PAGESIZE);
    ring->size = size;
    err = ringbuf_map(ring, map_fd);
    if (!err)
        err = ringbuf_watch(ring, map_fd);
    if (err) {
        ringbuf__close(&ring);
        return err;
    }
    *out = ring;
    return 0;
}

static size_t copy_out(struct ringbuf *ring, uint8_t *buffer, size_t size) {
    uint64_t position = __atomic_load_n(ring->consumer, __ATOMIC_RELAXED);
    uint64_t end = __atomic_load_n(ring->producer, __ATOMIC_ACQUIRE);
    size_t copied = 0;

    while (position < end) {
        const uint8_t *record = ring->data + (position & (ring->size - 1));
        uint32_t header = __atomic_load_n((const uint32_t *)record, __ATOMIC_ACQUIRE);
        uint32_t length = header & ~(BPF_RINGBUF_BUSY_BIT | BPF_RINGBUF_DISCARD_BIT);

        if (header & BPF_RINGBUF_BUSY_BIT)
            break; /* reserved, not written yet; what follows it waits too, which keeps the order */
        if (!(header & BPF_RINGBUF_DISCARD_BIT)) {
            if (length > size - copied)
                break;
            memcpy(buffer + copied, record + BPF_RINGBUF_HDR_SZ, length);
            copied += length;
        }
        position += (length + BPF_RINGBUF_HDR_SZ + 7) & ~7ULL;
    }
    __atomic_store_n(ring->consumer, position, __ATOMIC_RELEASE);
    return copied;
}

ssize_t ringbuf__drain(struct ringbuf *ring, void *buffer, size_t size, size_t enough,
                       int timeout_ms) {
    struct epoll_event events[2];
    uint64_t count;
    int n = 0;

    if (timeout_ms && ringbuf__waiting(ring) < enough)
        n = epoll_wait(ring->epoll_fd, events, 2, timeout_ms);
    if (n < 0 && errno != EINTR)
        return -errno;
    for (int i = 0; i < n; i++)
        if (events[i].data.u32 && read(ring->wake_fd, &count, sizeof(count)) < 0 && errno != EAGAIN)
            return -errno;
    return (ssize_t)copy_out(ring, buffer, size);
}

void ringbuf__wake(struct ringbuf *ring) {
    uint64_t one = 1;

    /* Can only fail when the counter is at its limit, and then the waiter is awake. */
    if (write(ring->wake_fd, &one, sizeof(one)) < 0)
        return;
}

uint64_t ringbuf__produced(const struct ringbuf *ring) {
    return __atomic_load_n(ring->producer, __ATOMIC_ACQUIRE);
}

uint64_t ringbuf__consumed(const struct ringbuf *ring) {
    return __atomic_load_n(ring->consumer, __ATOMIC_RELAXED);
}

uint64_t ringbuf__waiting(const struct ringbuf *ring) {
    return ringbuf__produced(ring) - ringbuf__consumed(ring);
}
