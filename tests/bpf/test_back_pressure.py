"""A recording that nobody takes in time: it costs resolution, never the target's speed or the recorder's memory."""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest

import memtrack
from memtrack import Tracker, consumer
from memtrack.events import RECORD_BYTES
from memtrack.figures import Figures
from memtrack.recording import Recording
from tests.bpf import harness, points
from tests.bpf.own_memory import own_bytes

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("totals")]

ROUNDS = 500
# tests/workloads/turnover.c faults in each page of 4 MiB in each round.
PRODUCED_EVENTS = ROUNDS * (4 << 20) // os.sysconf("SC_PAGESIZE")
RING_BYTES = 16 * os.sysconf("SC_PAGESIZE")
# The consumer's buffers, of a frame each; a frame that is compressed; what Python and the C library take by the way.
OWN_BYTES = consumer._BUFFER_BYTES * (consumer.BUFFERS + 1) + (1 << 20)


@pytest.fixture(scope="session")
def workloads() -> Path:
    return harness.build()


class Dawdler(io.BytesIO):
    """A file that takes a quarter of a second for each write."""

    def write(self, data: Any) -> int:
        time.sleep(0.25)
        return super().write(data)


@contextmanager
def pipe_read_late(go_on: threading.Event, taken: io.BytesIO) -> Iterator[BinaryIO]:
    """A pipe's end to write to; whoever reads at the other one begins when it is let."""
    readable, writable = os.pipe()

    def read() -> None:
        go_on.wait()
        while data := os.read(readable, 1 << 20):
            taken.write(data)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with os.fdopen(writable, "wb") as output:
            yield output
    finally:
        go_on.set()
        reader.join()
        os.close(readable)


def record(workloads: Path, report: Path, tracker: Tracker) -> int:
    """Runs the workload to its end, and returns by how much this process has grown until then."""
    before = own_bytes()
    variables = os.environ | {"MEMTRACK_ORACLE": str(report)}
    process = tracker.spawn([workloads / "turnover", str(ROUNDS)], env=variables)
    assert process.wait(300) == 0
    return own_bytes() - before


def exact(recording: Recording, report: Path) -> None:
    """Lossy, and yet with figures and peaks as the target itself has read them."""
    (held,) = points.read(report).named("held")
    (process,) = recording.processes
    expected = [pages * recording.page_size for pages in (held.rss, held.anon, held.file, held.shmem, held.swap)]
    assert recording.lost_events
    assert recording.event_counts["RSS"] + recording.lost_events > PRODUCED_EVENTS
    for found in (process.last, process.peak, recording.peak):
        assert parts(found) == expected
    assert process.exit_code == 0
    assert recording.complete, recording.problems


def parts(found: Figures) -> list[int | None]:
    return [found.rss_bytes, found.anon_bytes, found.file_bytes, found.shmem_bytes, found.swap_bytes]


def test_a_file_that_takes_its_time(workloads: Path, tmp_path: Path) -> None:
    sink = Dawdler()
    with Tracker(sink, ring_bytes=RING_BYTES) as tracker:
        grown = record(workloads, tmp_path / "report", tracker)
    assert grown < OWN_BYTES < PRODUCED_EVENTS * RECORD_BYTES // 3
    exact(tracker.recording, tmp_path / "report")
    sink.seek(0)
    exact(memtrack.open(sink), tmp_path / "report")


def test_a_pipe_that_nobody_reads_meanwhile(workloads: Path, tmp_path: Path) -> None:
    go_on, taken = threading.Event(), io.BytesIO()
    with pipe_read_late(go_on, taken) as output:
        with Tracker(output, ring_bytes=RING_BYTES) as tracker:
            grown = record(workloads, tmp_path / "report", tracker)
            # The target has ended, and the first frame waits still.
            assert not taken.tell()
            go_on.set()
        recording = tracker.recording
    assert grown < OWN_BYTES < PRODUCED_EVENTS * RECORD_BYTES // 3
    exact(recording, tmp_path / "report")
    taken.seek(0)
    exact(memtrack.open(taken), tmp_path / "report")
