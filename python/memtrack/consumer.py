"""Moves records from the ring to the recording.

One thread drains the ring into a few large buffers, in C; another compresses and writes whole ones. When the writing
falls behind, the buffers run out, then the ring, and then the programs drop records and count them: a slow disk costs
resolution, never the target's speed or this process's memory.
"""

from __future__ import annotations

import queue
import signal
import struct
import threading
import time
from collections import deque
from collections.abc import Callable

from memtrack.container import FRAME_EVENTS
from memtrack.errors import LoadError
from memtrack.events import RECORD_BYTES, lost
from memtrack.loader import Probes
from memtrack.ringbuf import RingBuffer

# What SIGKILL may cost, by the contract: frames leave at least every second.
FLUSH_NS = 900_000_000

# How long the drainer sleeps when the programs do not wake it: records below the watermark wait that long at most.
WAIT_MS = 100

# How often losses are looked for when nothing else happens.
CHECK_NS = 200_000_000

# ... and for how much longer than the last time took nobody is looked for whom there was no room: every task of the
# machine is walked for it, and there may be many times as many as there is room for.
_PAUSES = 9

# How often the tasks are walked to have all figures told anew through a small ring: a page of it takes ten processes.
SYNC_WALKS = 200

BUFFERS = 4
_BUFFER_BYTES = FRAME_EVENTS * RECORD_BYTES

# Room that is left in a buffer for what the drainer itself puts in: the marks of one round, LOST, and what comes last.
# It is also more than the programs write at once, so that a buffer that is not full takes at least one sample.
_MARKS_A_ROUND = 16
_LAST_RECORDS = 8
_RESERVE_BYTES = (2 * _MARKS_A_ROUND + 2 * _LAST_RECORDS + 1) * RECORD_BYTES
_TIME = struct.Struct("=Q")

Sink = Callable[[memoryview], None]


class Consumer:
    """Two threads between a ring and a sink; `sink` is called on one of them with buffers it must not keep."""

    def __init__(self, probes: Probes, ring: RingBuffer, sink: Sink) -> None:
        self._probes = probes
        self._ring = ring
        self._sink = sink
        self._enough_bytes = probes.ring_wakeup_bytes
        self._free: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
        self._full: queue.SimpleQueue[tuple[bytearray, int] | None] = queue.SimpleQueue()
        for _ in range(BUFFERS):
            self._free.put(bytearray(_BUFFER_BYTES))
        self._marks: deque[tuple[int, bytes]] = deque()
        self._stopping = threading.Event()
        self._last: Callable[[], bytes] = bytes
        self._sync_last = False
        self._lost_known = 0
        self._left_out = 0
        self._outside = False  # whether there may be descendants of members that do not belong to the tree
        self._take_in_at_ns = 0  # when to look for them again
        self._gap: tuple[int, int] | None = None  # where in the ring losses were found, and how many
        self._walks = 0  # left for what the ring had no room for at the last sync
        self._put_off = threading.Event()  # others have walked, and there was not room for all of it
        self._end: int | None = None  # of the ring, as soon as nothing more is asked of the kernel side
        self.lost_events = 0
        self.failure: BaseException | None = None
        """What ended a thread early or kept records from the sink; the rest has been gone through."""
        self._threads = [
            threading.Thread(target=work, name=f"memtrack-{name}", daemon=True)
            for name, work in (("drain", self._drain), ("write", self._write))
        ]

    def start(self) -> None:
        """Raises LoadError where the system gives no threads."""
        # Signals are for the threads that know what to do with them: one that waits in sigwait must get its own.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError as error:
            self.stop()
            raise LoadError(
                f"cannot record: {error}", "raise the limits on processes and memory (ulimit -a)"
            ) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def stop(self, last: Callable[[], bytes] = bytes, *, sync: bool = False) -> None:
        """Everything in the ring goes to the sink, and then the records of `last`; returns when it has them.

        `last` is called when the ring is empty; nothing must write into it any more. `sync` has what still lives
        reported, as is done anyway where something was lost.
        """
        self._last, self._sync_last = last, sync
        self._stopping.set()
        self._ring.wake()
        for thread in self._threads:
            if thread.ident is not None:  # None: it was never started
                thread.join()
        # Both lead back to whoever owns this object: a cycle, which would keep the buffers, the recording and its file
        # until the garbage collector comes by.
        self._last, self._sink = bytes, _nowhere

    @property
    def is_running(self) -> bool:
        """Whether a thread may still use the ring and the probes."""
        return any(thread.is_alive() for thread in self._threads)

    def go_on_later(self) -> None:
        """Takes in and has reported, when there is room, what another thread's walk had no room for."""
        self._put_off.set()

    def mark(self, time_ns: int, record: bytes) -> None:
        """Puts a record where its time belongs; from any thread."""
        self._marks.append((time_ns, record))

    def _drain(self) -> None:
        try:
            self._drain_until_stopped()
        except BaseException as error:
            self.failure = self.failure or error
        finally:
            self._full.put(None)

    def _drain_until_stopped(self) -> None:
        buffer, used, since = self._free.get(), 0, time.monotonic_ns()
        checked = since
        while True:
            stopping = self._stopping.is_set()
            copied = self._ring.drain(memoryview(buffer)[used:], self._enough_bytes, 0 if stopping else WAIT_MS)
            used = self._place_marks(buffer, used + copied)
            now = time.monotonic_ns()
            look = (stopping and self._end is None) or now - checked > CHECK_NS
            checked = now if look else checked
            looked = look and self._gap is None and not self._walks
            used = self._account_losses(buffer, used, look=look)
            # Only after a look that has found nothing: what was lost while a gap waited for its place is counted too.
            if looked and stopping and self._end is None and self._gap is None and not self._walks:
                self._conclude()
            done = self._end is not None and self._ring.consumed_bytes >= self._end and not self._walks
            done = done and not self._marks
            if done:
                used = _append(buffer, used, self._last())
            full = _BUFFER_BYTES - used < _RESERVE_BYTES
            if used and (full or done or now - since > FLUSH_NS):
                self._full.put((buffer, used))
                buffer, used = self._free.get(), 0
            if not used:
                since = now
            if done:
                return

    def _place_marks(self, buffer: bytearray, used: int) -> int:
        for _ in range(_MARKS_A_ROUND):
            if not self._marks:
                break
            time_ns, record = self._marks.popleft()
            position = _position_of(buffer, used, time_ns)
            buffer[position + RECORD_BYTES : used + RECORD_BYTES] = buffer[position:used]
            buffer[position : position + RECORD_BYTES] = record
            used += RECORD_BYTES
        return used

    def _account_losses(self, buffer: bytearray, used: int, *, look: bool) -> int:
        """Puts a LOST behind everything that was in the ring when losses were found, and has all figures told anew.

        In front of older records it would have them bring back what was lost: the figures of a process whose EXIT was.
        """
        if self._put_off.is_set():
            self._put_off.clear()
            self._outside = True
            self._walks = SYNC_WALKS
        if look and self._gap is None and not self._walks:
            tally = self._probes.tally()
            total = tally.lost_ring + tally.lost_lifecycle + tally.left_out + self._probes.skipped()
            self._outside = self._outside or tally.left_out != self._left_out
            self._left_out = tally.left_out
            if total != self._lost_known:
                self._gap = (self._ring.produced_bytes, total - self._lost_known)
                self._lost_known = self.lost_events = total
            elif self._outside and not self._stopping.is_set() and (now := time.monotonic_ns()) >= self._take_in_at_ns:
                self._outside = not self._probes.adopt_children()
                self._sync()
                end = time.monotonic_ns()
                self._take_in_at_ns = end + _PAUSES * (end - now)
        if self._gap is not None and self._ring.consumed_bytes >= self._gap[0]:
            # What follows it waits in the ring already, and must not seem to be older: whoever looks for a time in the
            # file goes by the order.
            now = _TIME.unpack_from(buffer, used - RECORD_BYTES + 8)[0] if used else time.monotonic_ns()
            used = _append(buffer, used, lost(now, self._gap[1]))
            self._gap = None
            self._sync()
        elif self._walks and not self._ring.waiting_bytes:
            self._sync_on()
        return used

    def _conclude(self) -> None:
        """Has what still lives reported; what is written into the ring after that, by whomever, is of no interest."""
        self._end = self._ring.produced_bytes
        if self._sync_last or self.lost_events:
            self._sync()

    def _sync(self) -> None:
        told = self._probes.sync(last=self._stopping.is_set())
        self._synced(SYNC_WALKS, told)

    def _sync_on(self) -> None:
        told = self._probes.sync_on(last=self._stopping.is_set())
        self._synced(self._walks - 1, told)

    def _synced(self, walks: int, told: bool) -> None:
        self._walks = 0 if told else walks
        if self._end is not None:
            self._end = self._ring.produced_bytes

    def _write(self) -> None:
        while (item := self._full.get()) is not None:
            buffer, used = item
            try:
                with memoryview(buffer) as view, view[:used] as records:
                    self._sink(records)
            except BaseException as error:
                # Buffers go on circulating: the drainer must not wait for one for ever.
                self.failure = self.failure or error
            self._free.put(buffer)


def _nowhere(_records: memoryview) -> None:
    """Where nothing is written to any more."""


def _append(buffer: bytearray, used: int, records: bytes) -> int:
    """In place: a bytearray that is mapped cannot grow."""
    buffer[used : used + len(records)] = records
    return used + len(records)


def _position_of(buffer: bytearray, used: int, time_ns: int) -> int:
    """The offset of the first record that is later than `time_ns`, in records that are nearly in order."""
    low, high = 0, used // RECORD_BYTES
    while low < high:
        middle = (low + high) // 2
        if _TIME.unpack_from(buffer, middle * RECORD_BYTES + 8)[0] <= time_ns:
            low = middle + 1
        else:
            high = middle
    return low * RECORD_BYTES
