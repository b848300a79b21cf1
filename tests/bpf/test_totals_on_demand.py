"""Tracker.totals(): what the tree holds now, and held at most, against the kernel's own walk of the page tables."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from memtrack import Tracker
from memtrack.figures import Figures, Peak
from tests.bpf import environment
from tests.bpf.walked import walked
from tests.command.invocation import until

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("totals")]

NOTHING = Figures(0, 0, 0, 0, 0)

# Does what a line says, answers with a line, and then rests. So does a child that it forks, while its parent is there.
WORKLOAD = """
import mmap, os, signal, sys
held = []
for line in sys.stdin:
    what, _, mib = line.strip().partition(" ")
    if what == "drop":
        held.pop().close()
    elif what == "fork":
        end, other_end = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(other_end)
            print(os.getpid(), flush=True)
            os.read(end, 1)
            os._exit(0)
        continue
    elif what == "reap":
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    else:
        flags = mmap.MAP_ANONYMOUS | (mmap.MAP_PRIVATE if what == "anon" else mmap.MAP_SHARED)
        held.append(mmap.mmap(-1, int(mib) << 20, flags=flags))
        for offset in range(0, len(held[-1]), mmap.PAGESIZE):
            held[-1][offset] = 1
    print(os.getpid(), flush=True)
"""


class Workload:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def does(self, line: str) -> int:
        """Returns the pid of who answers, when that one rests."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        pid = int(self.process.stdout.readline())
        until(lambda: rests(pid) and rests(self.process.pid))
        return pid


def rests(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("S")


@contextlib.contextmanager
def started(tracker: Tracker) -> Iterator[Workload]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with environment.no_khugepaged(), tracker.spawn([sys.executable, "-c", WORKLOAD], **pipes) as process:
        try:
            yield Workload(process)
        except BaseException:
            process.kill()
            raise


def parts(peak: Peak) -> Figures:
    return Figures(peak.rss_bytes, peak.anon_bytes, peak.file_bytes, peak.shmem_bytes, peak.swap_bytes)


def settled(peak: Peak, *, timed: bool) -> Peak:
    """Without events no clock is read at a rise: a sum that has not fallen is at its peak until it does."""
    return peak if timed else replace(peak, at_ns=None)


@pytest.mark.parametrize("events", [True, False], ids=["events", "totals"])
def test_at_rest_they_are_what_the_page_tables_have(events: bool) -> None:
    with Tracker(events=events) as tracker:
        held, peak = tracker.totals()
        assert held == parts(peak) == NOTHING
        assert peak.at_ns is peak.processes is None

        with started(tracker) as workload:
            pid = workload.does("anon 24")
            held, peak = tracker.totals()
            assert held == parts(peak) == walked([pid])
            assert peak.processes == 1
            small = held

            began = time.monotonic_ns()
            workload.does("shmem 16")
            held, peak = tracker.totals()
            ended = time.monotonic_ns()
            assert held == parts(peak) == walked([pid])
            assert held.shmem_bytes == (small.shmem_bytes or 0) + (16 << 20)
            assert peak.at_ns is not None
            assert began < peak.at_ns < ended
            top = peak

            workload.does("drop")
            held, peak = tracker.totals()
            assert held == walked([pid])
            assert held.shmem_bytes == small.shmem_bytes
            assert settled(peak, timed=events) == settled(top, timed=events)

            child = workload.does("fork")
            held, peak = tracker.totals()
            assert held == parts(peak) == walked([pid, child])
            assert peak.processes == 2
            top = peak

            workload.does("reap")
            held, peak = tracker.totals()
            assert held == walked([pid])
            assert settled(peak, timed=events) == settled(top, timed=events)

        assert workload.process.returncode == 0
        until(lambda: not tracker.members)
        held, peak = tracker.totals()
        assert held == NOTHING
        assert settled(peak, timed=events) == settled(top, timed=events)
    with tracker.recording as recording:
        assert recording.complete, recording.problems
        assert parts(recording.peak) == parts(top)
        assert recording.peak.processes == 2


def test_what_a_process_holds_when_it_is_taken_in_is_in_them() -> None:
    process = subprocess.Popen([sys.executable, "-c", WORKLOAD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with environment.no_khugepaged(), process, Tracker() as tracker:
        workload = Workload(process)
        pid = workload.does("anon 8")
        tracker.adopt(pid)
        held, peak = tracker.totals()
        assert held == parts(peak) == walked([pid])
        process.kill()
    tracker.recording.close()
