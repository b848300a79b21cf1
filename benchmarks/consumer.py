"""How fast the consumer is: what drains the ring, reduces and writes, fed by a producer that costs next to nothing."""

from __future__ import annotations

import mmap
import os
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memtrack._native import ffi, lib

from benchmarks import programs, sample
from benchmarks.sample import RECORDS, Sample
from memtrack import reducer
from memtrack.consumer import Consumer
from memtrack.events import RECORD_BYTES
from memtrack.ringbuf import RingBuffer
from memtrack.tracefile import Writer

RING_BYTES = 32 << 20
# One run of the producing program, a millisecond or less.
_BATCH = 4096
# Events a second that a slow disk takes; the producer makes ten million or so.
_SLOW = 1e6
_ORDER = struct.Struct("=4Q2Q")  # struct order of produce.bpf.c


@dataclass(frozen=True)
class _Tally:
    lost_ring: int
    lost_lifecycle: int = 0
    left_out: int = 0


class Producer:
    """Stands where memtrack's probes stand, with a program that writes a sample's records on demand."""

    def __init__(self, of: Sample, *, drop_full: bool) -> None:
        self.ring_wakeup_bytes = RING_BYTES // 16
        self._handle = ffi.new("struct probes **")
        image = Path(programs.bpf_object("produce")).read_bytes()
        self._check(lib.probes__open(self._handle, image, len(image)))
        self._probes = self._handle[0]
        self._check(lib.probes__autoload(self._probes, b"produce"))
        self._check(lib.probes__resize(self._probes, b"ring", RING_BYTES))
        self._check(lib.probes__load(self._probes))
        with mmap.mmap(lib.probes__map_fd(self._probes, b"records"), RECORDS * RECORD_BYTES) as records:
            records[:] = of.records
        self._orders = mmap.mmap(lib.probes__map_fd(self._probes, b"orders"), mmap.PAGESIZE)
        _ORDER.pack_into(self._orders, 0, of.lap_ns, self.ring_wakeup_bytes, _BATCH, drop_full, 0, 0)
        self.ring_fd: int = lib.probes__map_fd(self._probes, b"ring")

    @staticmethod
    def _check(error: int) -> None:
        if error < 0:
            raise OSError(-error, os.strerror(-error))

    def counts(self) -> tuple[int, int]:
        """Records written, and dropped because the ring was full."""
        *_, written, dropped = _ORDER.unpack_from(self._orders)
        return written, dropped

    def produce(self, count: int) -> None:
        """Writes until there were so many."""
        while (before := sum(self.counts())) < count:
            self._check(lib.probes__run(self._probes, b"produce"))
            if sum(self.counts()) == before:
                time.sleep(0.0002)  # the ring is full

    def tally(self) -> _Tally:
        return _Tally(self.counts()[1])

    def skipped(self) -> int:
        return 0

    def sync(self, *, last: bool = False) -> bool:  # noqa: ARG002 # the probes' signature
        return True

    def close(self) -> None:
        self._orders.close()
        lib.probes__close(self._handle)


def measure(quick: bool) -> list[dict[str, Any]]:
    """One row for each part of the consumer, and for all of it."""
    of, mixed = sample.make(sample.FAULTS), sample.make(sample.MIXED)
    laps, repetitions = (4, 3) if quick else (16, 5)
    own, _ = sample.cpus()
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, own)
    try:
        rows = [
            _repeated("compress and write", repetitions, lambda: _fed(of, laps, writes=True)),
            _repeated("reduce", repetitions, lambda: _fed(of, laps, reduces=True)),
            _repeated("ring to file", repetitions, lambda: _drained(of, laps, reduces=False)),
            _repeated("ring to file and figures, as record does", repetitions, lambda: _drained(of, laps)),
            _repeated("the same, of several processes", repetitions, lambda: _drained(mixed, laps)),
            _repeated("into a disk a tenth as fast as the producer", 1, lambda: _drained(of, 4 * laps, slow_disk=True)),
        ]
    finally:
        os.sched_setaffinity(0, allowed)
    return rows


def _repeated(name: str, repetitions: int, once: Callable[[], dict[str, float]]) -> dict[str, Any]:
    runs = [once() for _ in range(repetitions)]
    rates = [run["taken"] / run["cpu_s"] for run in runs]
    row: dict[str, Any] = {
        "part": name,
        "events": runs[0]["taken"],
        "per_cpu_second": {"median": statistics.median(rates), "low": min(rates), "high": max(rates)},
    }
    if "elapsed_s" in runs[0]:
        row["per_second"] = statistics.median(run["taken"] / run["elapsed_s"] for run in runs)
    if runs[0].get("disk_bytes"):
        row["bytes_per_event"] = runs[0]["disk_bytes"] / runs[0]["taken"]
    for count in ("produced", "lost"):
        if count in runs[0]:
            row[count] = runs[0][count]
    return row


def _fed(of: Sample, laps: int, *, writes: bool = False, reduces: bool = False) -> dict[str, float]:
    """Without a kernel: frames of real records, in memory."""
    cpu_s = 0.0
    with tempfile.TemporaryFile() as file:
        writer, timeline = Writer(file, of.header), reducer.of_header(of.header)
        for records in of.laps(laps):
            started = time.process_time()
            if writes:
                writer.write_frame(records)
            if reduces:
                timeline.feed(records)
            cpu_s += time.process_time() - started
        return {"taken": laps * RECORDS, "cpu_s": cpu_s, "disk_bytes": writer.written_bytes if writes else 0}


def _drained(of: Sample, laps: int, *, reduces: bool = True, slow_disk: bool = False) -> dict[str, float]:
    """With a real ring; the CPU time is that of the consumer's threads."""
    _, other = sample.cpus()
    producer = Producer(of, drop_full=slow_disk)
    ring = RingBuffer(producer.ring_fd, RING_BYTES)
    produced_cpu_s = 0.0

    def produce() -> None:
        nonlocal produced_cpu_s
        os.sched_setaffinity(0, other)  # of this thread
        producer.produce(laps * RECORDS)
        produced_cpu_s = time.thread_time()

    with tempfile.TemporaryFile() as file:
        writer, timeline = Writer(file, of.header), reducer.of_header(of.header)

        def take(records: memoryview) -> None:
            writer.write_frame(records)
            if reduces:
                timeline.feed(records)
            if slow_disk:
                time.sleep(len(records) / RECORD_BYTES / _SLOW)

        consumer = Consumer(producer, ring, take)  # type: ignore[arg-type] # it stands in for Probes
        thread = threading.Thread(target=produce)
        started, started_cpu = time.monotonic(), time.process_time()
        consumer.start()
        thread.start()
        thread.join()
        consumer.stop()
        elapsed_s, cpu_s = time.monotonic() - started, time.process_time() - started_cpu - produced_cpu_s
        written, dropped = producer.counts()
        ring.close()
        producer.close()
        if consumer.failure is not None:
            raise consumer.failure
        figures = {"taken": written, "cpu_s": cpu_s, "elapsed_s": elapsed_s, "disk_bytes": writer.written_bytes}
        if slow_disk:
            figures |= {"produced": written + dropped, "lost": consumer.lost_events}
        return figures


def text(rows: list[dict[str, Any]]) -> str:
    lines = [
        "the consumer on one core, fed with records of a page-fault storm; millions of events a second of CPU time",
        "",
    ]
    for row in rows:
        rate = {name: figure / 1e6 for name, figure in row["per_cpu_second"].items()}
        line = f"{row['part']:44} {rate['median']:6.2f} ({rate['low']:.2f}..{rate['high']:.2f})"
        if "per_second" in row:
            line += f"  {row['per_second'] / 1e6:6.2f} elapsed"
        if "bytes_per_event" in row:
            line += f"  {row['bytes_per_event']:5.2f} B an event"
        if "lost" in row:
            exact = "exactly" if row["events"] + row["lost"] == row["produced"] else "NOT"
            line += f"  {row['produced']:.0f} produced, {exact} {row['events']:.0f} written + {row['lost']:.0f} lost"
        lines.append(line)
    return "\n".join(lines) + "\n"
