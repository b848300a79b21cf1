"""What a recording says after events were lost: the figures from then on are as exact as before."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from memtrack._native import lib

from memtrack import Tracker, features, loader
from memtrack.events import Lost
from memtrack.loader import Probes
from tests.bpf import beside, environment, harness, points, replay
from tests.bpf.walked import walked
from tests.command.invocation import until

pytestmark = pytest.mark.bpf

RING_PAGES = 8
# Before Linux 6.2 a record comes once in 64 page faults of a thread.
RING_PAGES_OF_FEW_EVENTS = 1
SECONDS = 3


@pytest.fixture(scope="session")
def workloads() -> Path:
    return harness.build()


@pytest.mark.usefixtures("late_consumer")
def test_figures_are_exact_again_after_loss(workloads: Path, tmp_path: Path, counters_are_percpu: bool) -> None:
    pages = RING_PAGES if counters_are_percpu else RING_PAGES_OF_FEW_EVENTS
    report_path, recording_path = tmp_path / "report", tmp_path / "recording.zst"
    command = [str(workloads / "overrun"), str(SECONDS)]
    with recording_path.open("wb") as output:
        with Tracker(output, rmap=True, ring_bytes=pages * os.sysconf("SC_PAGESIZE")) as tracker:
            assert tracker.plan.rss.reason is None
            cached = not tracker.plan.counters_are_percpu
            process = tracker.spawn(command, env=os.environ | {"MEMTRACK_ORACLE": str(report_path)})
            assert process.wait(300) == 0
        with tracker.recording as recording:
            assert recording.lost_events
    watched = points.read(report_path).watched
    assert [point.name for point in watched] == ["rested", "more"]
    comparison = replay.compare(recording_path, watched, cached=cached)
    assert not comparison.problems
    assert not [str(difference) for difference in comparison.differences if difference.excessive]


def test_an_exit_that_nobody_saw_is_missed() -> None:
    with contextlib.closing(loader.load(features.probe(), rmap=False, ring_bytes=1 << 20)) as probes:
        with beside.spawned([probes], ["sleep", "60"]) as process:
            assert probes._unseen() == 0
            for program in hooks_on("sched_process_exit", probes):
                assert lib.probes__detach(probes._probes, program.encode()) == 0
            process.kill()
        assert probes._unseen() == 1
        assert probes.tally().execs_missed == 0


def test_an_exec_that_nobody_saw_is_missed() -> None:
    with contextlib.closing(loader.load(features.probe(), rmap=False, ring_bytes=1 << 20)) as probes:
        script = "echo up; read go; exec sh -c 'exit 3'"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with beside.spawned([probes], ["sh", "-c", script], **pipes) as process:
            assert process.stdout
            assert process.stdout.readline()
            for program in hooks_on("sched_process_exec", probes):
                assert lib.probes__detach(probes._probes, program.encode()) == 0
            process.communicate(b"go\n")
            assert process.returncode == 3
        assert probes.tally().execs_missed == 1
        assert probes._unseen() == 0


# Grows when it is told to, and rests.
GROWING = """
import mmap, sys
held = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for line in sys.stdin:
    for offset in range(0, len(held), mmap.PAGESIZE):
        held[offset] = 1
    print(flush=True)
"""


@pytest.mark.usefixtures("totals")
def test_what_skipped_programs_have_not_seen_is_told_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 7.0 tracepoints call with preemption off, and nothing that interrupts a program there changes a counter:
    the kernel skips none, unless with PREEMPT_RT. So they are taken away here, and that the kernel counts is pretended.
    """
    skipped, real = 0, Probes.skipped

    def pretended(probes: Probes) -> int:
        last = probes._skipped_at_last is not None  # what was pretended before is part of that
        return real(probes) + (0 if last else skipped)

    monkeypatch.setattr(Probes, "skipped", pretended)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with environment.no_khugepaged(), Tracker(rmap=True) as tracker:
        probes = tracker._entered()
        process = tracker.spawn([sys.executable, "-c", GROWING], **pipes)
        assert process.stdin
        assert process.stdout
        until(lambda: Path(f"/proc/{process.pid}/syscall").read_text().startswith("0 "))
        unseen = tracker.totals()[0]
        for program in probes.plan.programs - {"adopt_task", "learn_cpu_offsets"}:
            assert lib.probes__detach(probes._probes, program.encode()) == 0
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"\n"
        assert tracker.totals()[0] == unseen
        skipped = 2048
        until(lambda: tracker.lost_events)
        until(lambda: tracker.totals()[0] != unseen)
        truth = walked([process.pid])
        assert tracker.totals()[0] == truth
    process.kill()
    process.communicate()
    with tracker.recording as recording:
        assert recording.lost_events is not None
        assert recording.lost_events >= skipped  # from 7.0 on it may have been more in truth
        assert recording.losses == {**dict.fromkeys(recording.losses or {}, 0), "skipped": recording.lost_events}
        in_file = [event.lost_events for event in recording.events() if isinstance(event, Lost)]
        assert sum(in_file) == recording.lost_events
        (told,) = recording.processes
        assert told.last == truth
        assert (truth.anon_bytes or 0) - (unseen.anon_bytes or 0) >= 8 << 20
        if recording.sources["rmap"]["tier"]:
            assert told.rmap_last == replace(truth, swap_bytes=None)


def hooks_on(hook: str, probes: loader.Probes) -> list[str]:
    return [program for program in probes.plan.programs if program.startswith(hook)]
