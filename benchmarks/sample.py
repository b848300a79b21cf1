"""Records to measure with where the kernel must not be the limit: the same each time, and like those of real runs.

What a record looks like, how many there are of each type, and how far apart they are was taken from recordings of the
programs faults and spawn: one thread that faults, which took 3.5 bytes an event in the file; and a mix of a process
that faults, another with four threads, and short-lived ones. Of the mix the interleaving differs from run to run with
what else the machine does, and with it the bytes that an event takes, 3.8 to 4.7. Here two CPUs are busy all the time.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import os
import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from memtrack import events
from memtrack.events import FORK_SHARES_MM, NATIVE, RECORD_BYTES, Event, EventType, Exec, Exit, Figure, Fork, Member

RECORDS = 65536
"""As in produce.bpf.c."""

_WORDS = RECORD_BYTES // 8
_TIME_WORD = 1

_SEED = 1
_PAGE = 4096
_START_NS = 24_540_000_000_000  # seven hours after the boot
# The virtual machine's clock moves in steps of that much.
_CLOCK_NS = 10.02
# Nanoseconds from one page fault of a thread to the next: each twentieth of the recorded ones.
_FAULT_NS: Sequence[int] = (
    *(1400, 1442, 1443, 1452, 1462, 1462, 1472, 1473, 1483, 1503, 1533),
    *(1552, 1563, 1582, 1592, 1603, 1632, 1682, 1723, 1843, 2400),
)
_GIVE_BACK_NS = 12_000  # for a page table's 512 pages
_PAGES_A_TABLE = 512
_SLICE_NS = 3_000_000  # a thread's turn on a CPU, where others wait for it
_LIFE_NS = 20_000  # between two events of a short life


class Sample:
    """RECORDS records, and those again, later and later."""

    def __init__(self, records: bytes) -> None:
        self.header: dict[str, Any] = {"byte_order": NATIVE, "page_size": _PAGE, "start_ns": _START_NS}
        self.records = records
        times = array("Q", records)[_TIME_WORD::_WORDS]
        self.lap_ns = max(times) - min(times) + 1000

    def laps(self, count: int) -> Iterator[memoryview]:
        """So many times all records; what is given is good until the next is asked for."""
        words = array("Q", self.records)
        times = words[_TIME_WORD::_WORDS]
        for lap in range(count):
            shift = lap * self.lap_ns
            words[_TIME_WORD::_WORDS] = array("Q", [time + shift for time in times])
            yield memoryview(words).cast("B")


@dataclass
class _Space:
    """An address space, which starts with what a small static program holds."""

    pid: int
    held_bytes: dict[Member, int] = field(default_factory=lambda: {Member.ANON: 540_672, Member.FILE: 860_160})

    def moved(self, now_ns: float, tid: int, pages: int, member: Member = Member.ANON) -> Figure:
        self.held_bytes[member] += pages * _PAGE
        return Figure(EventType.RSS, _clock(now_ns), self.pid, tid, member, self.held_bytes[member])


@functools.cache
def faults() -> Sample:
    """One process with one thread touches 32 MiB, gives them back, and begins again."""
    return _sample(_alone(8192))


@functools.cache
def mixed() -> Sample:
    """On one CPU a process faults; on the other four threads of another do in turn, and short lives come between."""
    return _sample(heapq.merge(_alone(4096), _in_turn(), key=lambda event: event.time_ns))


def _alone(pages: int) -> Iterator[Event]:
    space, now_ns = _Space(4101), float(_START_NS)
    for took_ns, moved_pages in _steps(pages, random.Random(_SEED)):
        now_ns += took_ns
        yield space.moved(now_ns, 4102, moved_pages)


def _in_turn() -> Iterator[Event]:
    chance, space, now_ns = random.Random(_SEED + 1), _Space(4103), float(_START_NS)
    threads = [(tid, _steps(1024, chance)) for tid in range(4104, 4108)]
    for turn in itertools.count():
        tid, steps = threads[turn % len(threads)]
        end_ns = now_ns + _SLICE_NS
        while now_ns < end_ns:
            took_ns, moved_pages = next(steps)
            now_ns += took_ns
            yield space.moved(now_ns, tid, moved_pages)
        for event in _life(4200 + turn, now_ns, chance):
            yield event
            now_ns = event.time_ns


def _steps(pages: int, chance: random.Random) -> Iterator[tuple[float, int]]:
    """Of a thread that touches so many pages and gives them back, without end: nanoseconds, and pages that moved."""
    while True:
        for _ in range(pages):
            twentieth, part = divmod(chance.random() * (len(_FAULT_NS) - 1), 1)
            low_ns, high_ns = _FAULT_NS[int(twentieth) : int(twentieth) + 2]
            yield low_ns + part * (high_ns - low_ns), 1
        for _ in range(pages // _PAGES_A_TABLE):
            yield _GIVE_BACK_NS, -_PAGES_A_TABLE


def _life(pid: int, now_ns: float, chance: random.Random) -> Iterator[Event]:
    """Of a static program that does nothing, as posix_spawn starts it."""
    space = _Space(pid, {Member.ANON: 0, Member.FILE: 0})
    ticks = (_clock(now_ns + (1 + number + chance.random()) * _LIFE_NS) for number in itertools.count())
    yield Fork(EventType.FORK, next(ticks), pid, 4108, 4108, FORK_SHARES_MM)
    yield Exec(EventType.EXEC, next(ticks), pid, pid, "nothing")
    for member in Member:
        yield Figure(EventType.SYNC, next(ticks), pid, pid, member, 0)
    for member, moved_pages in [(Member.FILE, 16)] * 8 + [(Member.ANON, 1)] * 8 + [(Member.FILE, 1)] * 9:
        yield space.moved(next(ticks), pid, moved_pages, member)
    yield Exit(EventType.EXIT, next(ticks), pid, pid, 0)


def _clock(now_ns: float) -> int:
    return int(int(now_ns / _CLOCK_NS) * _CLOCK_NS)


def _sample(of: Iterator[Event]) -> Sample:
    return Sample(b"".join(events.encode(event, NATIVE) for event in itertools.islice(of, RECORDS)))


def cpus() -> tuple[set[int], set[int]]:
    """For whom is measured, and for whom is not; the same where there is one CPU only."""
    allowed = os.sched_getaffinity(0)
    return (allowed - {max(allowed)} or allowed), {max(allowed)}
