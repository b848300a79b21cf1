"""How fast the consumer is: what drains the ring, reduces and writes, fed by a producer that costs next to nothing."""

from __future__ import annotations

import mmap
import os
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from memtrack._native import ffi, lib

from benchmarks import programs, sample
from benchmarks.ratios import Spread
from benchmarks.sample import RECORDS, Sample
from memtrack import reducer
from memtrack.consumer import Consumer
from memtrack.events import NATIVE, RECORD_BYTES, EventType, Lost, decode
from memtrack.ringbuf import RingBuffer
from memtrack.tracefile import Reader, Writer

RING_BYTES = 32 << 20
# One run of the producing program, a millisecond or less.
_BATCH = 4096
# Events a second that a slow disk takes; the producer makes ten million or so.
_SLOW = 1e6
_ORDER = struct.Struct("=4Q3Q")  # struct order of produce.bpf.c
_MINOR_FAULTS = 7  # which field of /proc/PID/stat behind the name, proc(5)


@dataclass(frozen=True)
class _Tally:
    lost_ring: int
    lost_lifecycle: int = 0
    left_out: int = 0


class Producer:
    """Stands where memtrack's probes stand, with a program that writes a sample's records on demand."""

    def __init__(self, of: Sample, *, drop_full: bool) -> None:
        self.ring_wakeup_bytes = RING_BYTES // 16
        self._drop_full = drop_full
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
        _ORDER.pack_into(self._orders, 0, of.lap_ns, self.ring_wakeup_bytes, _BATCH, drop_full, 0, 0, 0)
        self.ring_fd: int = lib.probes__map_fd(self._probes, b"ring")

    @staticmethod
    def _check(error: int) -> None:
        if error < 0:
            raise OSError(-error, os.strerror(-error))

    def counts(self) -> tuple[int, int]:
        """Records written, and dropped because the ring was full."""
        *_, written, dropped, _ = _ORDER.unpack_from(self._orders)
        return written, dropped

    @property
    def made(self) -> int:
        """Records that it tried to write, by the kernel's count; but for tries that are made again."""
        tried: int = _ORDER.unpack_from(self._orders)[-1]
        return tried if self._drop_full else self.counts()[0]

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
    of, mixed = sample.faults(), sample.mixed()
    laps, repetitions = (8, 3) if quick else (16, 5)
    own, _ = sample.cpus()
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, own)
    try:
        rows = [
            _repeated("compress and write, without a kernel", repetitions, lambda: _fed(of, laps, writes=True)),
            _repeated("reduce to figures, without a kernel", repetitions, lambda: _fed(of, laps, reduces=True)),
            _repeated("ring to file", repetitions, lambda: _drained(of, laps, reduces=False)),
            _repeated("ring to file and figures, as record does", repetitions, lambda: _drained(of, laps)),
            _repeated("the same, two processes and five threads", repetitions, lambda: _drained(mixed, laps)),
            _repeated("into a disk a tenth as fast as the producer", 3, lambda: _drained(of, 4 * laps, slow_disk=True)),
        ]
    finally:
        os.sched_setaffinity(0, allowed)
    return rows


def wrong(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Where what was made is not what is in the file and what the file says was lost."""
    return [f"the consumer, {row['part']}: {_account(row)}" for row in rows if not _adds_up(row)]


def _adds_up(row: dict[str, Any]) -> bool:
    return all(made == found + lost for made, found, lost in row.get("accounts", []))


def _repeated(name: str, repetitions: int, once: Callable[[], dict[str, float]]) -> dict[str, Any]:
    runs = [once() for _ in range(repetitions)]
    row: dict[str, Any] = {
        "part": name,
        "per_cpu_second": asdict(_spread(run["taken"] / run["cpu_s"] for run in runs)),
    }
    if "elapsed_s" in runs[0]:
        row["per_second"] = asdict(_spread(run["taken"] / run["elapsed_s"] for run in runs))
        row["accounts"] = [tuple(int(run[count]) for count in ("made", "found", "lost")) for run in runs]
        for count in ("minor_faults", "wakeups"):
            row[count] = asdict(_spread(run[count] for run in runs))
    if runs[0].get("disk_bytes"):
        row["bytes_per_event"] = statistics.median(run["disk_bytes"] / run["taken"] for run in runs)
    return row


def _spread(figures: Iterable[float]) -> Spread:
    spread = Spread.of(figures)
    assert spread is not None
    return spread


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
    """With a real ring; the CPU time is that of the consumer's threads. A quarter of the laps warm it up."""
    _, other = sample.cpus()
    producer = Producer(of, drop_full=slow_disk)
    ring = RingBuffer(producer.ring_fd, RING_BYTES)
    produced_cpu_s = 0.0
    warm, steady = _Use(), _Use()

    def produce() -> None:
        nonlocal produced_cpu_s, warm, steady
        os.sched_setaffinity(0, other)  # of this thread
        producer.produce(laps // 4 * RECORDS)
        warm = _use(producer.counts()[0])
        producer.produce(laps * RECORDS)
        steady = _use(producer.counts()[0])
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
        written, made = producer.counts()[0], producer.made
        ring.close()
        producer.close()
        if consumer.failure is not None:
            raise consumer.failure
        found, lost = _in_file(file)
    millions = (steady.records - warm.records) / 1e6
    return {
        "taken": written,
        "cpu_s": cpu_s,
        "elapsed_s": elapsed_s,
        "disk_bytes": writer.written_bytes,
        "made": made,
        "found": found,
        "lost": lost,
        "minor_faults": (steady.minor_faults - warm.minor_faults) / millions,
        "wakeups": (steady.wakeups - warm.wakeups) / millions,
    }


@dataclass(frozen=True)
class _Use:
    """By the consumer's threads, when so many records had been written."""

    records: int = 0
    minor_faults: int = 0
    wakeups: int = 0


def _use(records: int) -> _Use:
    faults = wakeups = 0
    for thread in threading.enumerate():
        if thread.name.startswith("memtrack-"):
            task = Path(f"/proc/self/task/{thread.native_id}")
            # The name, the second field, is in brackets, and may have spaces.
            faults += int((task / "stat").read_text().rpartition(")")[2].split()[_MINOR_FAULTS])
            status = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines())
            wakeups += int(status["voluntary_ctxt_switches"])
    return _Use(records, faults, wakeups)


def _in_file(file: BinaryIO) -> tuple[int, int]:
    """How many records of the producer's there are, and how many are missing by what stands between them."""
    found = lost = 0
    file.seek(0)
    with Reader(file) as reader:
        for records in reader.frames():
            types = records[::RECORD_BYTES]
            found += len(types) - types.count(EventType.LOST)
            if EventType.LOST in types:
                lost += sum(event.lost_events for event in decode(records, NATIVE) if isinstance(event, Lost))
    return found, lost


def _account(row: dict[str, Any]) -> str:
    made, found, lost = (
        row["accounts"][0]
        if _adds_up(row)
        else next(account for account in row["accounts"] if account[0] != account[1] + account[2])
    )
    return f"{made:,} made {'=' if made == found + lost else 'IS NOT'} {found:,} in the file + {lost:,} LOST there"


_LEGEND = (
    "event    bytes in the file. 3.6 are asked for, of the stream that comes at such a speed: page faults of one",
    "         process, which is all rows but the mix",
    "faults   minor page faults of the consumer's threads for a million events, after a quarter of the run",
    "wakeups  how often they had waited, likewise",
)


def text(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "the consumer on one core, fed with records like those of a page-fault storm; millions of events a second",
        "",
        f"{'':44}{'of CPU time':>21}{'elapsed':>21}{'event':>9}{'faults':>9}{'wakeups':>9}",
    ]
    for row in rows:
        faults, wakeups = (row[count]["median"] if count in row else None for count in ("minor_faults", "wakeups"))
        cells = [
            f"{_millions(row['per_cpu_second']):>21}",
            f"{_millions(row.get('per_second')):>21}",
            f"{row['bytes_per_event']:7.2f} B" if "bytes_per_event" in row else f"{'-':>9}",
            *(f"{'-' if count is None else format(count, '.0f'):>9}" for count in (faults, wakeups)),
        ]
        lines.append(f"{row['part']:44}" + "".join(cells))
    lines += [
        "",
        *_LEGEND,
        f"into the slow disk: {_account(rows[-1])}",
    ]
    return "\n".join(lines) + "\n"


def _millions(rates: dict[str, float] | None) -> str:
    if rates is None:
        return "-"
    median, low, high = (rates[name] / 1e6 for name in ("median", "low", "high"))
    return f"{median:.2f} ({low:.2f}..{high:.2f})"
