/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* The consumer's end of a BPF ring buffer: whole batches of event records, copied out. */
#ifndef MEMTRACK_RINGBUF_H
#define MEMTRACK_RINGBUF_H

struct ringbuf;

/* Maps the ring with this many bytes of data. The descriptor stays the caller's. */
int ringbuf__open(struct ringbuf **out, int map_fd, size_t size);
void ringbuf__close(struct ringbuf **handle); /* sets it to NULL, and may find it so */

/*
 * Copies records into `buffer`, as many as are there and fit, and frees their room in the ring.
 * Returns bytes. While fewer than `enough` bytes are there, first waits until the programs wake it,
 * ringbuf__wake is called, or timeout_ms have passed: a consumer that ran after every record would
 * fight the producers for the ring.
 */
ssize_t ringbuf__drain(struct ringbuf *ring, void *buffer, size_t size, size_t enough,
                       int timeout_ms);
/* Ends a wait, this one or the next; from any thread. */
void ringbuf__wake(struct ringbuf *ring);
/*
 * Positions since the beginning, in bytes, record headers included: where the programs are, and
 * what has been freed.
 */
uint64_t ringbuf__produced(const struct ringbuf *ring);
uint64_t ringbuf__consumed(const struct ringbuf *ring);
/* Bytes that wait in the ring, record headers included. */
uint64_t ringbuf__waiting(const struct ringbuf *ring);

#endif
