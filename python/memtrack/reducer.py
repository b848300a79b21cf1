"""The reducer as this machine has it: in C where the extension is there, else in Python. The figures are the same."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from memtrack.events import COMM_BYTES, NATIVE, RECORD_BYTES, Buffer, ByteOrder, text_from_bytes
from memtrack.figures import Figure, Process, Result, Top, counts_of, ending_of, figures_of, peak_of
from memtrack.timeline import Timeline, options

# Above every machine's page size, and what a number of pages may be multiplied by in 128 bits.
_LARGEST_PAGE: Final = 1 << 32
# How many processes are fetched at a time.
_ROOM: Final = 256

# As bpf/timeline.h has them.
_STATES: Final = ("alive", "ended", "unknown")
_PPID, _START, _EXEC, _END, _WAIT_STATUS = (1 << bit for bit in range(5))
_FIGURES: Final = "4qQ"
_PEAK: Final = _FIGURES + "QQQ"
_PROCESS: Final = struct.Struct(f"=IIIiI4xQQQQ{COMM_BYTES}s{_PEAK}{_PEAK}{_FIGURES}{_FIGURES}")
_RESULT: Final = struct.Struct(f"={_PEAK}{_PEAK}QQQQQQ256Q")


class Reducer(Protocol):
    """What timeline.Timeline does, whoever does it. One thread at a time."""

    def feed(self, events: Buffer) -> None:
        """Takes whole records, in the order of the file. Raises MemoryError, and then takes no more."""

    def snapshot(self) -> dict[int, Process]:
        """The processes that live now, by pid; what they hold is their `last`."""

    def result(self) -> Result:
        """What was fed so far."""


def of_header(header: Mapping[str, Any]) -> Reducer:
    """For the recording that has this header."""
    return make(**options(header))


def make(
    *,
    page_size: int = 4096,
    byte_order: ByteOrder = NATIVE,
    rss: bool = True,
    rmap: bool = False,
    sampled: bool = False,
) -> Reducer:
    """The fastest that there is; the arguments are Timeline's."""
    if byte_order == NATIVE and page_size < _LARGEST_PAGE:
        try:
            return NativeTimeline(page_size=page_size, rss=rss, rmap=rmap, sampled=sampled)
        except ImportError:  # not built, or not for this machine
            pass
    return Timeline(page_size=page_size, byte_order=byte_order, rss=rss, rmap=rmap, sampled=sampled)


class NativeTimeline:
    """bpf/timeline.c, with timeline.Timeline's methods. Raises ImportError without the extension."""

    def __init__(self, *, page_size: int = 4096, rss: bool = True, rmap: bool = False, sampled: bool = False) -> None:
        # Reading must not need the extension, and must not load it before there is anything to reduce.
        from memtrack._native import ffi, lib

        self._ffi, self._lib = ffi, lib
        self._has_rss = rss
        self._has_rmap = rmap
        # Two threads in the C code would be more than wrong figures.
        self._lock = threading.Lock()
        handle = lib.timeline__new(page_size, rmap, sampled, int.from_bytes(os.urandom(8), "little"))
        if not handle:
            raise MemoryError
        self._timeline = ffi.gc(handle, lib.timeline__free)

    def feed(self, events: Buffer) -> None:
        view = memoryview(events).cast("B")
        if len(view) % RECORD_BYTES:
            raise ValueError(f"{len(view)} bytes are no whole number of {RECORD_BYTES}-byte records")
        with self._lock:
            error = self._lib.timeline__feed(self._timeline, self._ffi.from_buffer(view), len(view))
        if error:
            raise MemoryError

    def snapshot(self) -> dict[int, Process]:
        with self._lock:
            self._fetch_result()
            return {process.pid: process for process in self._fetch_processes(living=True)}

    def result(self) -> Result:
        with self._lock:
            values = self._fetch_result()
            processes = list(self._fetch_processes(living=False))
        rss, rmap, (_, left, lost_events, fed, first_ns, last_ns) = values[:8], values[8:16], values[16:22]
        return Result(
            peak=peak_of(_top(rss, tree=True) if self._has_rss else None),
            rmap_peak=peak_of(_top(rmap, tree=True), swap=False) if self._has_rmap else None,
            processes=processes,
            processes_left=left,
            lost_events=lost_events,
            events=counts_of(values[22:]),
            first_ns=first_ns if fed else None,
            last_ns=last_ns if fed else None,
        )

    def _fetch_result(self) -> tuple[int, ...]:
        out = self._ffi.new("struct timeline_result *")
        self._lib.timeline__result(self._timeline, out)
        return _RESULT.unpack(self._ffi.buffer(out))

    def _fetch_processes(self, *, living: bool) -> Iterator[Process]:
        cursor = self._ffi.new("uint64_t *")
        out = self._ffi.new("struct timeline_process[]", _ROOM)
        found = _ROOM
        while found == _ROOM:
            found = self._lib.timeline__processes(self._timeline, cursor, out, _ROOM, living)
            for values in _PROCESS.iter_unpack(self._ffi.buffer(out, found * _PROCESS.size)):
                yield self._public(values[:9], values[9], values[10:])

    def _public(self, numbers: Sequence[int], comm: bytes, figures: Sequence[int]) -> Process:
        pid, ppid, observed, wait_status, state, seen_ns, start_ns, exec_ns, end_ns = numbers
        exit_code, signal = ending_of(wait_status if observed & _WAIT_STATUS else None)
        return Process(
            pid=pid,
            ppid=ppid if observed & _PPID else None,
            comm=text_from_bytes(comm),
            seen_ns=seen_ns,
            start_ns=start_ns if observed & _START else None,
            exec_ns=exec_ns if observed & _EXEC else None,
            end_ns=end_ns if observed & _END else None,
            exit_code=exit_code,
            signal=signal,
            state=_STATES[state],
            peak=peak_of(_top(figures[:8]) if self._has_rss else None),
            last=figures_of(_values(figures[16:21]) if self._has_rss else None),
            rmap_peak=peak_of(_top(figures[8:16]), swap=False) if self._has_rmap else None,
            rmap_last=figures_of(_values(figures[21:26]), swap=False) if self._has_rmap else None,
        )


def _values(figures: Sequence[int]) -> list[Figure]:
    """Of struct timeline_figures."""
    *values, known = figures
    return [value if known >> member & 1 else None for member, value in enumerate(values)]


def _top(peak: Sequence[int], *, tree: bool = False) -> Top | None:
    """Of struct timeline_peak; how many processes lived is said of the tree's."""
    *figures, at_ns, processes, observed = peak
    return (at_ns, _values(figures), processes if tree else None) if observed else None
