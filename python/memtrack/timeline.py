"""The reducer: from event records to what each process and the tree held, and held at most.

The state machine, which bpf/timeline.c has a second time, for machines that can build it; tests hold the two together:

* Two layers, rss and rmap, with the same shape. In each, a process has four figures in bytes (file, anon, swap, shmem),
  any of which may be unknown, and the tree has their totals. What is summed is file + anon + shmem of what is known.
* FORK starts a process with nothing known; SYNC gives figures to both layers. One that shares its parent's address
  space gets no SYNC and so holds nothing of its own: the address space counts once, where it is shown.
* EXEC makes the process's figures unknown: its old address space is gone. EXIT ends the process; the figures until then
  are what it held last.
* RSS sets a figure of the rss layer. RMAP adds to one of the rmap layer, if it is known: a sum needs a start.
* LOST makes every figure unknown and takes it out of the totals; SYNC brings it back, and RSS does in its layer, being
  absolute. So a process whose EXIT was lost never counts again, and no sum is too high. This holds if what was lost was
  lost before the records behind LOST were written. To make LOST cheap, each process carries the number of LOSTs
  that its figures have seen: its epoch.
* An event for an unknown pid starts a process, for its FORK was lost. One for a pid that has ended is late, and is
  dropped, unless something was lost since. A second FORK for a pid that lives ends the first process unseen.
* Peaks: a sum is a candidate after each RMAP, after each RSS but swap's, and after the SYNC of the last member, when
  the four are one statement. The first instant of the largest sum is kept, with its parts.
* PEAK is a sum that the kernel side saw, and a candidate in the rss layer of its process, or of the tree (pid 0), once
  the last member completes it. It tells what was not recorded: events that were lost, or left out. Where every change
  has its record, sums of records are never too high. Where they are samples, a sum of figures of different age may be:
  there the largest PEAK stands, and what the sums came to only since the last one.
* What replaces a page in place (copy on write, the split of a huge page) is mapped before the old is unmapped, and the
  rmap sum between the two never was. So adding at an address is looked at together with the same task's next event:
  where that removes at the same address something of another member, or the same number of pages > 1, the two are one
  step. (One page of the same member may as well have been touched and given back. With more pages, the kernel's
  counters tell: an RSS event lies between where memory was really taken.)
* A figure of the rmap layer saturates at 64 bits, and what is lost in all does.

The order of the file is the order of events. Timestamps may disagree slightly between CPUs; they are only reported.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from memtrack.events import (
    COMM_BYTES,
    NATIVE,
    RECORD_BYTES,
    Buffer,
    ByteOrder,
    EventType,
    Member,
    text_from_bytes,
)
from memtrack.figures import (
    Figure,
    Figures,
    Peak,
    Process,
    Result,
    Top,
    counts_of,
    ending_of,
    figures_of,
    peak_of,
    saturated,
)

__all__ = ["Figures", "Peak", "Process", "Result", "Timeline", "options"]

# Plain numbers: an IntEnum costs a dictionary look-up wherever it is compared.
_RSS: Final = int(EventType.RSS)
_RMAP: Final = int(EventType.RMAP)
_FORK: Final = int(EventType.FORK)
_EXEC: Final = int(EventType.EXEC)
_EXIT: Final = int(EventType.EXIT)
_SYNC: Final = int(EventType.SYNC)
_LOST: Final = int(EventType.LOST)
_ADOPT: Final = int(EventType.ADOPT)
_PEAK: Final = int(EventType.PEAK)
_FILE: Final = int(Member.FILE)
_ANON: Final = int(Member.ANON)
_SWAP: Final = int(Member.SWAP)
_SHMEM: Final = int(Member.SHMEM)
_MEMBERS: Final = len(Member)
_RARE: Final = frozenset((_FORK, _EXEC, _EXIT, _ADOPT, _LOST, _PEAK))
_PAYLOAD: Final = 24

# How many records are decoded at a time; bounds memory to about 1.5 MiB.
_BATCH: Final = 4096
# How far ahead the other half of a replacement is looked for. The two are a few microseconds apart, under a lock of the
# page table; what lies between comes from other CPUs, each of which needs about a microsecond for an event.
_LOOKAHEAD: Final = 256
# A counter of a kernel before 6.2 can be below zero for a moment.
_NEGATIVE: Final = 1 << 63
_MOST_LOST: Final = (1 << 64) - 1

_Record: TypeAlias = tuple[int, int, int, int, int, int, int, int]


class _Held:
    """One layer of one process."""

    __slots__ = ("certain", "peak", "peak_sum", "sum", "told", "values")

    def __init__(self) -> None:
        self.values: list[Figure] = [None] * _MEMBERS
        self.sum = 0
        self.peak_sum = -1
        self.peak: Top | None = None
        self.told: dict[int, int] = {}  # of a PEAK that is not complete yet, by member
        self.certain: tuple[int, Top] | None = None  # the largest PEAK, with its sum

    def forget(self) -> None:
        self.values = [None] * _MEMBERS
        self.sum = 0


class _Layer:
    """One layer of the tree."""

    __slots__ = ("certain", "holders", "peak", "peak_sum", "sum", "told", "totals")

    def __init__(self) -> None:
        self.totals = [0] * _MEMBERS
        self.holders = [0] * _MEMBERS  # processes of which this member is known
        self.sum = 0
        self.peak_sum = -1
        self.peak: Top | None = None
        self.told: dict[int, int] = {}  # of a PEAK that is not complete yet, by member
        self.certain: tuple[int, Top] | None = None  # the largest PEAK, with its sum

    def forget(self) -> None:
        self.totals = [0] * _MEMBERS
        self.holders = [0] * _MEMBERS
        self.sum = 0

    def put(self, held: _Held, member: int, size_bytes: int) -> None:
        """Sets a figure."""
        before = held.values[member]
        if before is None:
            before = 0
            self.holders[member] += 1
        change = size_bytes - before
        held.values[member] = size_bytes
        self.totals[member] += change
        if member != _SWAP:
            held.sum += change
            self.sum += change

    def take(self, held: _Held) -> None:
        """Makes a process's figures unknown."""
        for member, size_bytes in enumerate(held.values):
            if size_bytes is not None:
                self.totals[member] -= size_bytes
                self.holders[member] -= 1
        self.sum -= held.sum
        held.forget()

    def rise(self, held: _Held, now_ns: int, processes: int) -> None:
        """Keeps the sums if they are the largest yet."""
        if held.sum > held.peak_sum:
            held.peak_sum = held.sum
            held.peak = (now_ns, held.values[:], None)
        if self.sum > self.peak_sum:
            self.peak_sum = self.sum
            known = zip(self.totals, self.holders, strict=True)
            self.peak = (now_ns, [total if holders else None for total, holders in known], processes)

    def top(self) -> Top | None:
        """The peak as it is shown: a sum of many figures may need more bits than each of them."""
        if self.peak is None:
            return None
        at_ns, values, processes = self.peak
        return at_ns, [None if value is None else saturated(value) for value in values], processes


class _Process:
    __slots__ = (
        "comm",
        "end_ns",
        "epoch",
        "exec_ns",
        "forked",
        "last",
        "last_rmap",
        "pid",
        "ppid",
        "rmap",
        "rss",
        "seen_ns",
        "start_ns",
        "state",
        "wait_status",
    )

    def __init__(self, pid: int, now_ns: int, epoch: int) -> None:
        self.pid = pid
        self.ppid: int | None = None
        self.comm = ""
        self.seen_ns = now_ns
        self.start_ns: int | None = None
        self.exec_ns: int | None = None
        self.end_ns: int | None = None
        self.wait_status: int | None = None
        self.state = "alive"
        self.epoch = epoch
        self.forked = False
        self.rss = _Held()
        self.rmap = _Held()
        self.last: list[Figure] | None = None
        self.last_rmap: list[Figure] | None = None


class Timeline:
    """Feed it records in the order of the file; ask at any time."""

    def __init__(
        self,
        *,
        page_size: int = 4096,
        byte_order: ByteOrder = NATIVE,
        rss: bool = True,
        rmap: bool = False,
        sampled: bool = False,
    ) -> None:
        """`rss` and `rmap`: whether the layer was recorded; the figures of one that was not are None.

        `sampled`: not every change has its record.
        """
        order = "<" if byte_order == "little" else ">"
        # Type, time, pid, tid, then the payload as RSS, SYNC and RMAP have it; the rare others are read where they lie.
        self._record = struct.Struct(order + "B7xQIIiIQQ")
        self._time = struct.Struct(order + "8xQ32x")
        self._fork_payload = struct.Struct(order + "I20x")
        self._adopt_payload = struct.Struct(order + "16sI4x")
        self._lost_payload = struct.Struct(order + "Q16x")
        self._peak_payload = struct.Struct(order + "iIQQ")
        self._page_size = page_size
        self._has_rss = rss
        self._has_rmap = rmap
        self._sampled = sampled
        self._rss = _Layer()
        self._rmap = _Layer()
        self._epoch = 0
        self._known = 0  # processes that live, as far as is known since the last loss
        self._live: dict[int, _Process] = {}
        self._ended: dict[int, int] = {}  # pid to the epoch in which it ended
        self._processes: list[_Process] = []
        self._counts = [0] * 256
        self._lost_events = 0
        self._first_ns: int | None = None
        self._last_ns: int | None = None
        self._waiting = b""  # records that cannot be judged before what follows is known
        self._merged: set[int] = set()  # indexes of RMAP records that were taken together with an earlier one

    @classmethod
    def of_header(cls, header: Mapping[str, Any]) -> Timeline:
        """For the recording that has this header."""
        return cls(**options(header))

    def feed(self, events: Buffer) -> None:
        """Takes whole records."""
        view = memoryview(events).cast("B")
        if len(view) % RECORD_BYTES:
            raise ValueError(f"{len(view)} bytes are no whole number of {RECORD_BYTES}-byte records")
        if not view:
            return
        types = view[::RECORD_BYTES].tobytes()
        for kind in set(types):
            self._counts[kind] += types.count(kind)
        (first_ns,) = self._time.unpack_from(view, 0)
        (last_ns,) = self._time.unpack_from(view, len(view) - RECORD_BYTES)
        self._first_ns = first_ns if self._first_ns is None else self._first_ns
        self._last_ns = last_ns if self._last_ns is None else max(self._last_ns, last_ns)
        for start in range(0, len(view), _BATCH * RECORD_BYTES):
            batch = view[start : start + _BATCH * RECORD_BYTES]
            self._reduce(memoryview(self._waiting + batch) if self._waiting else batch, more=True)

    def snapshot(self) -> dict[int, Process]:
        """The processes that live now, by pid; what they hold is their `last`."""
        self._settle()
        return {pid: self._public(process) for pid, process in self._live.items()}

    def result(self) -> Result:
        """What was fed so far."""
        self._settle()
        return Result(
            peak=peak_of(self._rss.top() if self._has_rss else None),
            rmap_peak=peak_of(self._rmap.top(), swap=False) if self._has_rmap else None,
            processes=[self._public(process) for process in self._processes],
            processes_left=self._known,
            lost_events=self._lost_events,
            events=counts_of(self._counts),
            first_ns=self._first_ns,
            last_ns=self._last_ns,
        )

    def _settle(self) -> None:
        if self._waiting:
            self._reduce(memoryview(self._waiting), more=False)

    def _reduce(self, view: memoryview, more: bool) -> None:
        """One batch. What cannot be judged before `more` is there stays in _waiting."""
        records: list[_Record] = list(self._record.iter_unpack(view))
        live, rss, merged = self._live, self._rss, self._merged
        for index, (kind, now, pid, _, member, _, size, _) in enumerate(records):
            if kind == _RSS:
                process = live.get(pid)
                if process is None or process.epoch != self._epoch:
                    process = self._process(pid, now)
                if process is not None and 0 <= member < _MEMBERS:
                    rss.put(process.rss, member, size if size < _NEGATIVE else 0)
                    if member != _SWAP:
                        rss.rise(process.rss, now, self._known)
            elif kind == _RMAP:
                if not self._has_rmap or index in merged:
                    continue
                partner = _partner(records, index)
                if partner == len(records) and more:
                    self._waiting = bytes(view[index * RECORD_BYTES :])
                    self._merged = {later - index for later in merged if later > index}
                    return
                steps = [(member, size)]
                if partner is not None and partner < len(records):
                    merged.add(partner)
                    steps.append((records[partner][4], records[partner][6]))
                self._map(pid, now, steps)
            elif kind == _SYNC:
                self._sync(pid, now, member, size)
            elif kind in _RARE:
                payload = view[index * RECORD_BYTES + _PAYLOAD : (index + 1) * RECORD_BYTES]
                if kind == _FORK:
                    self._fork(pid, now, *self._fork_payload.unpack(payload))
                elif kind == _EXEC:
                    self._exec(pid, now, text_from_bytes(bytes(payload[:COMM_BYTES])))
                elif kind == _EXIT:
                    self._exit(pid, now, member)
                elif kind == _ADOPT:
                    comm, parent_pid = self._adopt_payload.unpack(payload)
                    self._adopt(pid, now, text_from_bytes(comm), parent_pid)
                elif kind == _PEAK:
                    self._tell(pid, now, *self._peak_payload.unpack(payload))
                else:
                    self._lose(*self._lost_payload.unpack(payload))
        self._waiting = b""
        self._merged = set()

    def _process(self, pid: int, now_ns: int) -> _Process | None:
        """The process that an event is about; None for a late event."""
        process = self._live.get(pid)
        if process is None:
            if self._ended.get(pid) == self._epoch:
                return None
            return self._start(pid, now_ns)
        if process.epoch != self._epoch:
            process.rss.forget()
            process.rmap.forget()
            process.epoch = self._epoch
            self._known += 1
        return process

    def _start(self, pid: int, now_ns: int) -> _Process:
        process = _Process(pid, now_ns, self._epoch)
        self._live[pid] = process
        self._processes.append(process)
        self._known += 1
        return process

    def _end(self, process: _Process) -> None:
        """Keeps what it held last, and takes it out of the tree."""
        if process.epoch == self._epoch:
            process.last = process.rss.values[:]
            process.last_rmap = process.rmap.values[:]
            self._rss.take(process.rss)
            self._rmap.take(process.rmap)
            self._known -= 1
        del self._live[process.pid]
        self._ended[process.pid] = self._epoch

    def _fork(self, pid: int, now_ns: int, parent_pid: int) -> None:
        process = self._live.get(pid)
        if process is not None and (process.forked or process.epoch != self._epoch):
            process.state = "unknown"
            self._end(process)
            process = None
        if process is None:
            process = self._start(pid, now_ns)
        parent = self._live.get(parent_pid)
        if parent is not None and not process.comm:
            process.comm = parent.comm  # the kernel copies it
        process.ppid = parent_pid
        process.start_ns = now_ns
        process.forked = True

    def _exec(self, pid: int, now_ns: int, comm: str) -> None:
        process = self._process(pid, now_ns)
        if process is not None:
            self._rss.take(process.rss)
            self._rmap.take(process.rmap)
            process.comm = comm
            process.exec_ns = now_ns

    def _exit(self, pid: int, now_ns: int, wait_status: int) -> None:
        process = self._process(pid, now_ns)
        if process is not None:
            process.end_ns = max(now_ns, process.seen_ns)
            process.wait_status = wait_status
            process.state = "ended"
            self._end(process)

    def _adopt(self, pid: int, now_ns: int, comm: str, parent_pid: int) -> None:
        process = self._process(pid, now_ns) or self._start(pid, now_ns)
        process.comm = comm
        if process.ppid is None:
            process.ppid = parent_pid

    def _sync(self, pid: int, now_ns: int, member: int, size_bytes: int) -> None:
        process = self._process(pid, now_ns)
        if process is None or not 0 <= member < _MEMBERS:
            return
        if size_bytes >= _NEGATIVE:
            size_bytes = 0
        self._rss.put(process.rss, member, size_bytes)
        self._rmap.put(process.rmap, member, size_bytes)
        if member == _MEMBERS - 1:
            self._rss.rise(process.rss, now_ns, self._known)
            self._rmap.rise(process.rmap, now_ns, self._known)

    def _map(self, pid: int, now_ns: int, steps: list[tuple[int, int]]) -> None:
        """Adds pages, as 64-bit two's complements, to members of the rmap layer, in one step."""
        process = self._process(pid, now_ns)
        if process is None:
            return
        held = process.rmap
        known = False
        for member, pages in steps:
            size_bytes = held.values[member] if 0 <= member < _MEMBERS else None
            if size_bytes is not None:
                known = True
                delta_pages = pages if pages < _NEGATIVE else pages - 2 * _NEGATIVE
                self._rmap.put(held, member, saturated(size_bytes + delta_pages * self._page_size))
        if known:
            self._rmap.rise(held, now_ns, self._known)

    def _tell(self, pid: int, now_ns: int, member: int, processes: int, size_bytes: int, at_ns: int) -> None:
        process = self._process(pid, now_ns) if pid else None
        if not 0 <= member < _MEMBERS or (pid and process is None):
            return
        top = process.rss if process is not None else self._rss
        top.told[member] = size_bytes if size_bytes < _NEGATIVE else 0
        if member < _MEMBERS - 1:
            return
        told, top.told = top.told, {}
        # Nothing was seen where there is no time; a part that is missing was lost.
        if not at_ns or len(told) < _MEMBERS:
            return
        total = told[_FILE] + told[_ANON] + told[_SHMEM]
        if top.certain is None or total > top.certain[0]:
            top.certain = total, (at_ns, [told[member] for member in range(_MEMBERS)], None if pid else processes)
        if self._sampled or top.certain[0] >= top.peak_sum:  # and of equal ones it is the first
            top.peak_sum, top.peak = top.certain

    def _lose(self, lost_events: int) -> None:
        self._lost_events = min(self._lost_events + lost_events, _MOST_LOST)
        self._epoch += 1
        self._known = 0
        self._rss.forget()
        self._rmap.forget()

    def _public(self, process: _Process) -> Process:
        last, last_rmap = process.last, process.last_rmap
        alive = self._live.get(process.pid) is process
        if alive and process.epoch == self._epoch:
            last, last_rmap = process.rss.values, process.rmap.values
        exit_code, signal = ending_of(process.wait_status)
        return Process(
            pid=process.pid,
            ppid=process.ppid,
            comm=process.comm,
            seen_ns=process.seen_ns,
            start_ns=process.start_ns,
            exec_ns=process.exec_ns,
            end_ns=process.end_ns,
            exit_code=exit_code,
            signal=signal,
            state=process.state if not alive or process.epoch == self._epoch else "unknown",
            peak=peak_of(process.rss.peak if self._has_rss else None),
            last=figures_of(last if self._has_rss else None),
            rmap_peak=peak_of(process.rmap.peak, swap=False) if self._has_rmap else None,
            rmap_last=figures_of(last_rmap, swap=False) if self._has_rmap else None,
        )


def options(header: Mapping[str, Any]) -> dict[str, Any]:
    """What a reducer of the recording that has this header is made with."""
    sources, detail = header.get("sources", {}), header.get("detail", {})
    return {
        "page_size": header["page_size"],
        "byte_order": header["byte_order"],
        "rss": sources.get("rss", {"hook": ""}).get("hook") is not None,
        "rmap": sources.get("rmap", {}).get("tier") is not None,
        "sampled": not detail.get("events", True) or any(detail.get(f"resolution_{unit}") for unit in ("bytes", "ns")),
    }


def _partner(records: list[_Record], index: int) -> int | None:
    """What the RMAP record at `index` is one step with; len(records) where only later records can tell."""
    _, _, pid, tid, member, _, pages, addr = records[index]
    if not addr or pages >= _NEGATIVE:
        return None
    end = index + 1 + _LOOKAHEAD
    for later in range(index + 1, min(end, len(records))):
        kind, _, other_pid, other_tid, other_member, _, other_pages, other_addr = records[later]
        if other_tid != tid or other_pid != pid:
            continue
        if kind != _RMAP or other_addr != addr or other_pages < _NEGATIVE:
            return None
        removed_pages = 2 * _NEGATIVE - other_pages
        return later if other_member != member or removed_pages == pages > 1 else None
    return None if end <= len(records) else len(records)
