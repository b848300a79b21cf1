"""Streams of events and recordings, written down as what happens; shared by the tests of whatever reads them."""

from __future__ import annotations

import io
from typing import Any

from memtrack import events
from memtrack.events import ByteOrder, EventType
from memtrack.tracefile import Writer

PAGE = 4096
MIB = 1 << 20

FILE, ANON, SWAP, SHMEM = range(4)


class Stream:
    """Records in order, a microsecond apart. Every method returns the stream, so that a test is one chain."""

    def __init__(self, byte_order: ByteOrder = events.NATIVE) -> None:
        self.now_ns = 1_000_000
        self._data = bytearray()
        self._byte_order = byte_order

    @property
    def data(self) -> bytes:
        return bytes(self._data)

    def add(self, event: events.Event) -> Stream:
        return self.raw(events.encode(event, self._byte_order))

    def raw(self, record: bytes) -> Stream:
        self._data += record
        self.now_ns += 1000
        return self

    def fork(self, pid: int, parent: int, *, shares: bool = False) -> Stream:
        return self.add(events.Fork(EventType.FORK, self.now_ns, pid, parent, parent, int(shares)))

    def exec(self, pid: int, comm: str = "job") -> Stream:
        return self.add(events.Exec(EventType.EXEC, self.now_ns, pid, pid, comm))

    def exit(self, pid: int, wait_status: int = 0) -> Stream:
        return self.add(events.Exit(EventType.EXIT, self.now_ns, pid, pid, wait_status))

    def sync(self, pid: int, *, file: int = 0, anon: int = 0, swap: int = 0, shmem: int = 0) -> Stream:
        for member, size in enumerate((file, anon, swap, shmem)):
            self.sync_one(pid, member, size)
        return self

    def sync_one(self, pid: int, member: int, size: int) -> Stream:
        return self.add(events.Figure(EventType.SYNC, self.now_ns, pid, pid, member, size))

    def rss(self, pid: int, member: int, size: int, *, tid: int | None = None) -> Stream:
        return self.add(events.Figure(EventType.RSS, self.now_ns, pid, tid or pid, member, size))

    def rmap(self, pid: int, member: int, pages: int, addr: int = 0, *, tid: int | None = None) -> Stream:
        return self.add(events.Rmap(EventType.RMAP, self.now_ns, pid, tid or pid, member, pages, addr))

    def lost(self, count: int) -> Stream:
        return self.add(events.Lost(EventType.LOST, self.now_ns, 0, 0, count))

    def adopt(self, pid: int, parent: int, comm: str = "old") -> Stream:
        return self.add(events.Adopt(EventType.ADOPT, self.now_ns, pid, 1, comm, parent))

    def peak(self, pid: int, at_ns: int, processes: int = 0, *, file: int = 0, anon: int = 0, shmem: int = 0) -> Stream:
        for member, size in enumerate((file, anon, 0, shmem)):
            self.add(events.Told(EventType.PEAK, self.now_ns, pid, pid, member, processes, size, at_ns))
        return self

    def root(self, pid: int, **held: int) -> Stream:
        """What a command that is recorded starts with."""
        return self.fork(pid, 1, shares=True).exec(pid).sync(pid, **held)


SOURCES: dict[str, Any] = {
    "rss": {"tier": "percpu", "hook": "tp_btf/rss_stat (exact per-CPU sum)", "reason": None},
    "rmap": {"tier": None, "hooks": [], "reason": "not asked for"},
    "lifecycle": {"hooks": ["tp_btf/task_newtask", "tp_btf/sched_process_exit"], "reason": None},
}
HEADER: dict[str, Any] = {
    "page_size": PAGE,
    "clock": "CLOCK_MONOTONIC",
    "clock_offset_ns": 5,
    "start_ns": 1_000_000,
    "command": ["job", "\udcff"],
    "sources": SOURCES,
}
TRAILER: dict[str, Any] = {
    "events": {},
    "lost_events": 0,
    "status": {"exit_code": 0, "signal": None},
    "end_ns": 2_000_000,
}


def recording(*frames: bytes, header: dict[str, Any] | None = None, trailer: dict[str, Any] | None = None) -> bytes:
    """A whole recording file."""
    file = io.BytesIO()
    writer = Writer(file, {**HEADER, **(header or {})})
    for frame in frames:
        writer.write_frame(frame)
    writer.finish({**TRAILER, **(trailer or {})})
    return file.getvalue()
