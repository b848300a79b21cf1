"""Replays a recording up to each quiet point and compares, page by page."""

from __future__ import annotations

import itertools
import struct
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from memtrack import reducer
from memtrack.events import RECORD_BYTES, EventType, Figure, Member, encode
from memtrack.reader import Reader
from memtrack.reducer import Reducer
from memtrack.timeline import Figures, Result
from tests.bpf.points import Point

RSS, RMAP = "rss", "rmap"
# Swap is in the kernel's counters only: the reverse map is of resident pages.
MEMBERS = {RSS: ("file", "anon", "swap", "shmem"), RMAP: ("file", "anon", "shmem")}

# Before 6.2 (SPLIT_RSS_COUNTING) each thread keeps its changes to its own address space to itself until it has taken
# this many page faults: mm/memory.c, check_sync_rss_stat() with TASK_RSS_EVENTS_THRESH, which hands over once the count
# was above 64 before it goes up, and so with the 66th.
FAULTS_KEPT = 66
# A fault maps one page of anonymous memory or of swap, but of a file (shmem too) those around it that are cached as
# well: fault_around_bytes of mm/memory.c, which only debugfs can change.
FAULT_AROUND_BYTES = 65536

_STEP = struct.Struct("=B15xI4xi4xq8x")  # type, pid, member, and the size of a SYNC or the pages of an RMAP
# Where they are in a record, in words of their own size.
_TIME, _PID = 1, 4
_ENDS_OF_FIGURES = frozenset((EventType.FORK, EventType.EXEC, EventType.EXIT))


@dataclass(frozen=True)
class Difference:
    """What the recording has beyond the oracle, in pages, and how much the kernel's own counters may be off."""

    point: Point
    layer: str
    member: str
    pages: int
    bound_pages: int

    @property
    def excessive(self) -> bool:
        return abs(self.pages) > self.bound_pages

    def __str__(self) -> str:
        bound = f" (bound {self.bound_pages})" if self.bound_pages else ""
        return (
            f"{self.point.name!r} of {self.point.pid}: {self.layer} {self.member} is {self.pages:+} pages off"
            f" the oracle's {self.point.figure(self.member)}{bound}"
        )


@dataclass(frozen=True)
class Rise:
    """By how many pages a process held more between two of its quiet points than at either."""

    before: Point
    point: Point
    layer: str
    pages: int

    def __str__(self) -> str:
        return (
            f"{self.point.pid} rises {self.pages:+} pages in the {self.layer} layer above what it holds at"
            f" {self.before.name!r} and {self.point.name!r}"
        )


@dataclass(frozen=True)
class Comparison:
    """`result` is what the whole file comes to."""

    differences: tuple[Difference, ...]
    rises: tuple[Rise, ...]
    problems: tuple[str, ...]
    result: Result

    def worst(self, layer: str, member: str | None = None) -> int | None:
        """The largest difference, of one member or of any; None where nothing was compared."""
        found = [abs(d.pages) for d in self.differences if d.layer == layer and member in (None, d.member)]
        return max(found, default=None)

    def bound(self, layer: str, member: str | None = None) -> int:
        found = (d.bound_pages for d in self.differences if d.layer == layer and member in (None, d.member))
        return max(found, default=0)


def bound_pages(point: Point, member: str, cached: bool) -> int:
    """How far the kernel's counter may be from the page tables; `cached`: its threads keep changes to themselves.

    From 6.2 on a counter is a sum over CPUs, and the recording has the exact one.
    """
    if not cached:
        return 0
    around = max(1, FAULT_AROUND_BYTES // point.page_bytes) if member in ("file", "shmem") else 1
    return FAULTS_KEPT * around * point.threads


def compare(path: Path, points: Sequence[Point], *, cached: bool) -> Comparison:
    """Every figure of every layer that the recording has, at every point."""
    with Reader(path) as reader:
        events = b"".join(reader.frames())
        timeline = reducer.of_header(reader.header)
        layers = [RSS] if not reader.header["sources"]["rss"]["reason"] else []
        layers += [RMAP] if reader.header["sources"]["rmap"]["tier"] else []
    moments = Moments.by_process(events)
    differences: list[Difference] = []
    rises: list[Rise] = []
    problems: list[str] = []
    earlier: dict[int, tuple[int, Point]] = {}
    fed = 0
    for end, point in sorted(((moments[point.pid].end(point.ns), point) for point in points), key=lambda pair: pair[0]):
        if not end:
            problems.append(f"process {point.pid} is not in the recording at {point.name!r}")
            continue
        problems += _restless(point, moments[point.pid])
        timeline.feed(memoryview(events)[fed * RECORD_BYTES : end * RECORD_BYTES])
        fed = end
        process = timeline.snapshot().get(point.pid)
        if process is None:
            problems.append(f"process {point.pid} does not live at {point.name!r}")
            continue
        for layer in layers:
            held = process.last if layer == RSS else process.rmap_last
            differences += _differences(point, layer, held, cached and layer == RSS, problems)
        if point.pid in earlier:
            start, before = earlier[point.pid]
            between = moments[point.pid].between(start, end)
            steps = b"".join(events[index * RECORD_BYTES : (index + 1) * RECORD_BYTES] for index in between)
            rises += _rises(before, point, steps, reducer.of_header(reader.header))
        earlier[point.pid] = end, point
    if RMAP in layers:
        problems += _below_zero(events, reader.header["page_size"])
    timeline.feed(memoryview(events)[fed * RECORD_BYTES :])
    problems += reader.problems
    return Comparison(tuple(differences), tuple(rises), tuple(problems), timeline.result())


class Moments:
    """When a process has records, and which: sorted once, as guests are slow and recordings have many."""

    def __init__(self, moments: list[tuple[int, int]]) -> None:
        self._records = [record for _, record in moments]
        moments.sort()
        self._times = [now for now, _ in moments]
        self._ends = list(itertools.accumulate((record + 1 for _, record in moments), max, initial=0))

    @classmethod
    def by_process(cls, events: bytes) -> Mapping[int, Moments]:
        """Of all; whoever has no record is among them too."""
        times = memoryview(events).cast("Q")[_TIME :: RECORD_BYTES // 8].tolist()
        pids = memoryview(events).cast("I")[_PID :: RECORD_BYTES // 4].tolist()
        moments: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for record, pid in enumerate(pids):
            moments[pid].append((times[record], record))
        return defaultdict(lambda: cls([]), {pid: cls(those) for pid, those in moments.items()})

    def end(self, ns: int) -> int:
        """The number of all records up to the last of this process's until then, with those of others in between."""
        return self._ends[bisect_right(self._times, ns)]

    def count(self, from_ns: int, ns: int) -> int:
        return bisect_right(self._times, ns) - bisect_left(self._times, from_ns)

    def between(self, start: int, end: int) -> list[int]:
        """Which records there are of the process, from this one on and before that one."""
        return self._records[bisect_left(self._records, start) : bisect_left(self._records, end)]


def _restless(point: Point, moments: Moments) -> Iterator[str]:
    """Events of a process while the oracle walked it: the point was none."""
    if count := moments.count(point.from_ns, point.ns):
        yield f"process {point.pid} has {count} events while it was quiet at {point.name!r}"


def _differences(
    point: Point, layer: str, held: Figures | None, cached: bool, problems: list[str]
) -> Iterator[Difference]:
    for member in MEMBERS[layer]:
        size_bytes = None if held is None else getattr(held, f"{member}_bytes")
        if size_bytes is None:
            problems.append(f"{layer} {member} of process {point.pid} is not known at {point.name!r}")
            continue
        pages = size_bytes // point.page_bytes
        yield Difference(point, layer, member, pages - point.figure(member), bound_pages(point, member, cached))


def _rises(before: Point, point: Point, steps: bytes, timeline: Reducer) -> Iterator[Rise]:
    """What the process's own records say of the time between; they begin at the oracle's figures, not at recorded ones.

    Without this, a peak that never was is hidden by any that came before it.
    """
    for member in Member:
        size_bytes = before.figure(member.name.lower()) * before.page_bytes
        timeline.feed(encode(Figure(EventType.SYNC, before.ns, before.pid, before.pid, member, size_bytes)))
    timeline.feed(steps)
    process = timeline.snapshot().get(point.pid)
    if process is None:
        return
    for layer, peak in ((RSS, process.peak), (RMAP, process.rmap_peak)):
        if peak is not None and peak.rss_bytes is not None:
            yield Rise(before, point, layer, peak.rss_bytes // point.page_bytes - max(before.rss, point.rss))


def _below_zero(events: bytes, page_bytes: int) -> Iterator[str]:
    """Sums of the rmap layer that are below zero after any record, of any process; no reducer's floor is in between.

    The bound is 0 also where threads keep changes to the counters to themselves. A sum begins with what a SYNC says: at
    fork nobody has kept anything yet, at exec and adoption what is kept is added, and that is a matter of the counters'
    lateness, while the pages that leave are those that were there. Only where a running process is adopted can a base
    lack pages; the workloads sleep then.

    Records that stand before a LOST may already lack what was lost: the file up to there tells nothing.
    """
    held: dict[tuple[int, int], int] = {}
    lowest: dict[tuple[int, int], int] = {}
    start = events[::RECORD_BYTES].rfind(EventType.LOST) + 1
    for kind, pid, member, amount in _STEP.iter_unpack(memoryview(events)[start * RECORD_BYTES :]):
        key = pid, member
        if kind == EventType.RMAP:
            if key in held:
                pages = held[key] = held[key] + amount
                if pages < 0:
                    lowest[key] = min(pages, lowest.get(key, 0))
        elif kind == EventType.SYNC:
            held[key] = amount // page_bytes
            if amount < 0:
                lowest[key] = min(held[key], lowest.get(key, 0))
        elif kind in _ENDS_OF_FIGURES:
            for other in Member:
                held.pop((pid, other), None)
    for (pid, member), pages in lowest.items():
        yield f"the rmap sum of process {pid}'s {Member(member).name.lower()} pages falls to {pages}"
