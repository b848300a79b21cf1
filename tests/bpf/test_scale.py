"""Many processes: what a recorder holds does not grow with them, and where there is no room, it says so."""

from __future__ import annotations

import gc
import os
import subprocess
import time
from pathlib import Path

import pytest

from memtrack import Tracker
from memtrack.recording import Recording
from tests.bpf import harness
from tests.command.invocation import bpf_objects_of, report, run

pytestmark = pytest.mark.bpf

PROCESSES = 10_000
# A row of the result: numbers, a name and two layers' figures, in Python objects.
PROCESS_BYTES = 4096


@pytest.fixture(scope="session")
def workloads() -> Path:
    return harness.build()


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def storm(workloads: Path, rounds: int) -> Recording:
    workers = 4
    with Tracker(events=False) as tracker:
        assert tracker.spawn([workloads / "storm", str(workers), str(rounds // workers), "exit"]).wait(300) == 0
        assert tracker.members == 0
    assert len(tracker.recording.processes) == rounds + workers + 1
    return tracker.recording


def test_ten_thousand_processes_come_and_go(workloads: Path) -> None:
    storm(workloads, 400)
    before = resident_bytes()
    recording = storm(workloads, PROCESSES)
    grown = resident_bytes() - before
    assert recording.complete, recording.problems
    assert recording.lost_events == 0
    assert recording.processes_left == 0
    assert {process.state for process in recording.processes} == {"ended"}
    assert grown < PROCESSES * PROCESS_BYTES
    assert not bpf_objects_of()


SLEEPERS = 30


def crowd(seconds: float) -> list[str]:
    return ["/bin/sh", "-c", f"for i in $(seq {SLEEPERS}); do sleep {seconds} & done; wait"]


def test_what_there_was_no_room_for_is_said(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    done = run("record", "--max-processes", "8", "--strict", "-o", path, "--", *crowd(0.2))
    assert done.code == 125
    assert "incomplete" in done.err
    assert "no room for a process" in done.err
    assert "--max-processes" in done.err
    said = report(path)
    assert not said["complete"]
    # Some were taken in as soon as others had gone.
    assert 0 < said["lost_events"] <= SLEEPERS
    assert len(said["processes"]) >= 8
    done = run("record", "--max-processes", "64", "--strict", "-f", "-o", path, "--", *crowd(0.2))
    assert done.code == 0
    assert report(path)["complete"]
    assert len(report(path)["processes"]) == SLEEPERS + 2  # and seq


def test_who_was_left_out_is_taken_in_when_there_is_room() -> None:
    """The last ones start when the table is full, and outlive those who fill it."""
    script = "for i in 1 2 3 4 5 6 7; do sleep 0.5 & done; sleep 30 & sleep 30 & sleep 2; kill $!; kill %8; wait"
    with Tracker(max_processes=8) as tracker:
        process = tracker.spawn(["/bin/bash", "-mc", script], stderr=subprocess.DEVNULL)
        time.sleep(1.5)
        assert tracker.members == 4
        process.wait(60)
    with tracker.recording as recording:
        assert recording.event_counts["ADOPT"] >= 2
        adopted = [process for process in recording.processes if process.start_ns is None]
        assert all(process.last.rss_bytes for process in adopted)
        assert not recording.complete
