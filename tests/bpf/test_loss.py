"""What a recording says after events were lost: the figures from then on are as exact as before."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from memtrack import Tracker
from memtrack.ringbuf import RingBuffer
from tests.bpf import harness, points, replay

RING_PAGES = 8
SECONDS = 3
# How late the consumer is each time, in which a ring of that size fills up on any machine.
LATE_S = 0.1


@pytest.fixture(scope="session")
def workloads() -> Path:
    return harness.build()


@pytest.mark.bpf
def test_figures_are_exact_again_after_loss(workloads: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drain = RingBuffer.drain

    def late(*arguments: Any) -> int:
        time.sleep(LATE_S)
        return drain(*arguments)

    monkeypatch.setattr(RingBuffer, "drain", late)
    report_path, recording_path = tmp_path / "report", tmp_path / "recording.zst"
    command = [str(workloads / "overrun"), str(SECONDS)]
    with recording_path.open("wb") as output:
        with Tracker(output, rmap=True, ring_bytes=RING_PAGES * os.sysconf("SC_PAGESIZE")) as tracker:
            assert tracker.plan.rss.reason is None
            cached = not tracker.plan.counters_are_percpu
            process = tracker.spawn(command, env=os.environ | {"MEMTRACK_ORACLE": str(report_path)})
            assert process.wait(300) == 0
        with tracker.recording as recording:
            assert recording.lost_events > 0
    watched = points.read(report_path).watched
    assert [point.name for point in watched] == ["rested", "more"]
    comparison = replay.compare(recording_path, watched, cached=cached)
    assert not comparison.problems
    assert not [str(difference) for difference in comparison.differences if difference.excessive]
