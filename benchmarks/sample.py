"""Records that a real run made, to measure with where the kernel must not be the limit."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path

from benchmarks import programs
from memtrack.events import RECORD_BYTES
from memtrack.tracefile import Reader

RECORDS = 65536
"""As in produce.bpf.c."""

_WORDS = RECORD_BYTES // 8
_TIME_WORD = 1

# What shells run, with the programs faults, spawn and nothing.
FAULTS = 'exec "$0" 32 9 1 -1'
"""One process faults."""
MIXED = '"$0" 16 9 1 -1 & "$0" 16 9 4 -1 & "$1" 40 1 -1 "$2"; wait'
"""Two processes fault at the same time, one of them with four threads, and short-lived ones come and go."""


class Sample:
    """The first RECORDS records of a recording, and those again, later and later."""

    def __init__(self, header: dict[str, object], records: bytes) -> None:
        self.header = header
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


def make(script: str) -> Sample:
    with tempfile.TemporaryDirectory(prefix="memtrack-bench-") as directory:
        path = Path(directory, "recording")
        target = ["sh", "-c", script, *map(programs.program, ("faults", "spawn", "nothing"))]
        recorder = [sys.executable, "-m", "memtrack", "record", "-f", "-o", str(path), "--"]
        subprocess.run(
            [*recorder, *target], check=True, cwd=programs.ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        with Reader(path) as reader:
            records = b"".join(reader.frames())
            header = {name: reader.header[name] for name in reader.header if name != "crc32"}
    size = RECORDS * RECORD_BYTES
    if len(records) < size:
        raise RuntimeError(f"the sample has {len(records) // RECORD_BYTES} records only")
    return Sample(header, records[:size])


def cpus() -> tuple[set[int], set[int]]:
    """For whom is measured, and for whom is not; the same where there is one CPU only."""
    allowed = os.sched_getaffinity(0)
    return (allowed - {max(allowed)} or allowed), {max(allowed)}
