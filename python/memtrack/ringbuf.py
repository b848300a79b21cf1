"""The consumer's end of the ring buffer: whole batches, copied out in C while other threads run."""

from __future__ import annotations

import os

from memtrack._native import ffi, lib
from memtrack.errors import LoadError


class RingBuffer:
    """The mapped ring of one BPF object. Used by one thread, apart from wake."""

    def __init__(self, map_fd: int, size_bytes: int) -> None:
        """`map_fd` stays the caller's; `size_bytes` is the ring's data, a power of two of whole pages."""
        self.size_bytes = size_bytes
        # Closed with this object at the latest: an interrupt may come at any time from the next call on.
        self._handle = ffi.gc(ffi.new("struct ringbuf **"), lib.ringbuf__close)
        error = lib.ringbuf__open(self._handle, map_fd, size_bytes)
        if error:
            raise LoadError(f"cannot map the ring buffer: {os.strerror(-error).lower()}")
        self._ring = self._handle[0]

    def drain(self, buffer: memoryview, enough_bytes: int, timeout_ms: int) -> int:
        """Copies records into `buffer` and returns how many bytes.

        Waits for up to `timeout_ms` while fewer than `enough_bytes` are there.
        """
        copied: int = lib.ringbuf__drain(self._ring, ffi.from_buffer(buffer), len(buffer), enough_bytes, timeout_ms)
        if copied < 0:
            raise LoadError(f"cannot read the ring buffer: {os.strerror(-copied).lower()}")
        return copied

    def wake(self) -> None:
        """Ends a wait of drain, this one or the next; from any thread."""
        lib.ringbuf__wake(self._ring)

    @property
    def waiting_bytes(self) -> int:
        """What the programs have written and nobody has drained, record headers included."""
        waiting: int = lib.ringbuf__waiting(self._ring)
        return waiting

    @property
    def produced_bytes(self) -> int:
        """How far the programs have written since the beginning."""
        produced: int = lib.ringbuf__produced(self._ring)
        return produced

    @property
    def consumed_bytes(self) -> int:
        """How far drain has come since the beginning."""
        consumed: int = lib.ringbuf__consumed(self._ring)
        return consumed

    def close(self) -> None:
        self._ring = ffi.NULL
        ffi.release(self._handle)
