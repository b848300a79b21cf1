"""A ring of one page: what does not fit is counted, and every figure that is told is true."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from memtrack import Tracker
from memtrack.events import EventType
from memtrack.recording import Recording
from tests.bpf import beside, harness
from tests.bpf.counting import Counting

pytestmark = pytest.mark.bpf

PAGE_BYTES = os.sysconf("SC_PAGESIZE")


@pytest.fixture(scope="session")
def workloads() -> Path:
    return harness.build()


@pytest.mark.usefixtures("totals", "loses_nothing", "late_consumer")
@pytest.mark.parametrize("command", [("touch_anon",), ("copies",), ("shared_memory", "memfd")], ids=" ".join)
def test_peaks_and_last_figures_are_exact(command: tuple[str, ...], workloads: Path) -> None:
    """As a ring that holds everything has them. What a child freed unseen is no part of what the next one adds to. The
    ring is as large as it must be for its headroom to hold what the kernel kept of the few that end in a tenth second.
    """
    with Tracker() as whole, Tracker(ring_bytes=16 * PAGE_BYTES) as starved:
        beside.run([whole, starved], [workloads / command[0], *command[1:]])
    with whole.recording as one, starved.recording as other:
        assert one.lost_events == 0
        assert other.lost_events
        assert parts(one, other.peak) == parts(one, one.peak)
        lived = {process.pid: process for process in other.processes if process.state == "ended"}
        for process in one.processes:
            # Whose own end was lost has no figures: it is `unknown`.
            if process.pid in lived:
                assert parts(one, lived[process.pid].peak) == parts(one, process.peak)
                assert lived[process.pid].last == process.last


def parts(recording: Recording, peak: object) -> list[int]:
    names = ("rss_bytes", "anon_bytes", "file_bytes", "shmem_bytes")
    return [getattr(peak, name) // recording.page_size for name in names]


@pytest.mark.usefixtures("loses_nothing", "late_consumer")
@pytest.mark.parametrize("command", [("copies",), ("storm", 1, 60, "exec")], ids=lambda command: command[0])
def test_told_and_lost_are_all_that_happened(command: tuple[object, ...], workloads: Path) -> None:
    """Counted by a second recorder that loses nothing, to the record."""
    whole, starved = Counting(32 << 20), Counting(PAGE_BYTES)
    try:
        with beside.spawned([whole.probes, starved.probes], [workloads / str(command[0]), *command[1:]]) as process:
            assert process.wait(300) == 0
    finally:
        whole.close()
        starved.close()
    assert whole.tally.lost_ring == whole.tally.lost_lifecycle == 0
    lost = starved.tally
    assert lost.lost_ring > 0
    assert starved.counts[EventType.RSS] + lost.lost_ring == whole.counts[EventType.RSS]
    told_once = (EventType.FORK, EventType.EXEC, EventType.EXIT)
    missing = sum(whole.counts[kind] - starved.counts[kind] for kind in told_once)
    # The rest are figures: four of each kind at a time.
    assert missing <= lost.lost_lifecycle
    assert (lost.lost_lifecycle - missing) % 4 == 0
    assert starved.consumer.lost_events == lost.lost_ring + lost.lost_lifecycle


@pytest.mark.usefixtures("late_consumer")
def test_all_who_live_on_are_told_of(workloads: Path) -> None:
    """However many they are: the last figures come through a ring that holds a few of them at a time."""
    lived = 80
    script = f"for i in $(seq {lived}); do sleep 60 & done; exec {workloads}/copies"
    with Tracker(ring_bytes=PAGE_BYTES) as tracker:
        process = tracker.spawn(["/bin/sh", "-c", script], stdout=-3, start_new_session=True)
        assert process.wait(300) == 0
        started = time.monotonic()
    assert time.monotonic() - started < 30
    os.killpg(process.pid, 9)
    with tracker.recording as recording:
        alive = [process for process in recording.processes if process.state == "alive"]
        assert recording.lost_events
        assert recording.processes_left == lived
        assert len(alive) == lived
        assert all(process.last.rss_bytes for process in alive)


@pytest.mark.usefixtures("totals", "late_consumer")
def test_nothing_comes_between_an_end_and_the_figures_that_it_has(workloads: Path) -> None:
    """A LOST there would void them, and losses are everywhere."""
    with Tracker(ring_bytes=16 * PAGE_BYTES) as tracker:
        assert tracker.spawn([workloads / "storm", "4", "100", "exit"]).wait(300) == 0
    with tracker.recording as recording:
        assert recording.lost_events
        records = [(event.type, event.pid) for event in recording.events()]
    ends = [number for number, (kind, pid) in enumerate(records) if kind is EventType.EXIT]
    told = [number for number in ends if (EventType.PEAK, records[number][1]) in records[max(0, number - 64) : number]]
    assert told
    for number in told:
        pid = records[number][1]
        assert records[number - 8 : number] == [(EventType.PEAK, pid)] * 4 + [(EventType.SYNC, pid)] * 4
