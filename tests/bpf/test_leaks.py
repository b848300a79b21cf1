"""Nothing grows with the number of recordings, and nothing outlives its recorder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from memtrack import CommandError, Tracker, UsageError
from tests.command.invocation import bpf_objects_of, gone, start, until

pytestmark = pytest.mark.bpf


def test_a_tracker_that_is_left_leaves_no_bpf_object() -> None:
    with Tracker(rmap=True) as tracker:
        held = bpf_objects_of()
    assert {kind for kind, _ in held} == {"map", "prog", "link"}
    assert not bpf_objects_of()
    gone(held)
    tracker.recording.close()


def test_one_that_ends_by_an_error_leaves_none_either() -> None:
    held = set()

    def fail(tracker: Tracker) -> None:
        with tracker:
            held.update(bpf_objects_of())
            tracker.spawn(["no-such-program"])

    tracker = Tracker()
    with pytest.raises(CommandError):
        fail(tracker)
    gone(held)
    tracker.recording.close()


def test_a_recorder_that_is_killed_leaves_none(tmp_path: Path) -> None:
    process = start("record", "--rmap", "-o", tmp_path / "r", "--", "sleep", "60", stderr=subprocess.DEVNULL)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    (child,) = map(int, until(lambda: children.read_text().split()))
    until(lambda: Path(f"/proc/{child}/comm").read_text() == "sleep\n")
    held = bpf_objects_of(process.pid)
    assert not bpf_objects_of(child)
    process.kill()
    process.wait()
    gone(held)
    os.kill(child, 0)
    os.kill(child, 9)


def test_a_fork_of_the_process_that_tracks_keeps_none_alive() -> None:
    reader, writer = os.pipe()
    with Tracker() as tracker:
        held = bpf_objects_of()
        child = os.fork()
        if not child:
            os.close(writer)
            clean = not bpf_objects_of()
            with pytest.raises(UsageError, match="not entered"):
                tracker.spawn(["true"])
            os.read(reader, 1)  # until the parent is done
            os._exit(0 if clean else 1)
        os.close(reader)
        assert tracker.spawn(["true"]).wait() == 0
    gone(held)
    os.close(writer)
    assert os.waitpid(child, 0)[1] == 0
    with tracker.recording as recording:
        assert [process.comm for process in recording.processes] == ["true"]


def test_a_fork_may_leave_the_block_too() -> None:
    with Tracker() as tracker:
        child = os.fork()
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with tracker.recording as recording:
        assert recording.complete


MANY = """
import ctypes, gc, os, sys, threading
from pathlib import Path
import memtrack

def state():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is free in the middle of the heap too
    status = dict(line.split(":\\t") for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "descriptors": sorted(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "tasks": int(status["Threads"]),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
        "memory": int(status["RssAnon"].split()[0]) << 10,
    }

def trackers(count):
    for _ in range(count):
        with memtrack.Tracker() as tracker:
            tracker.spawn(["true"]).wait()
        tracker.recording.close()
        del tracker

def settled():
    # A heap may be held up for a moment: the least of several is what is in use.
    states = []
    for _ in range(4):
        trackers(1)
        states.append(state())
    least = {name: min(state.pop(name) for state in states) for name in ("memory", "mappings")}
    return states, least

# Whatever is built up once, as caches, is there after the first few.
trackers(4)
before, least_before = settled()
for _ in range(3):
    trackers(int(sys.argv[1]))
    after, least_after = settled()
    assert after == before, (after, before)
    print(*(least_after[name] - least_before[name] for name in least_after))
    least_before = least_after
"""


def test_many_trackers_in_turn_grow_nothing() -> None:
    count = int(os.environ.get("MEMTRACK_TEST_TRACKERS", "10"))
    # One heap for all threads: how many there are, and what stays in each, is the C library's matter.
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    command = [sys.executable, "-c", MANY, str(count)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    grown, mappings = zip(*(map(int, line.split()) for line in done.stdout.splitlines()), strict=True)
    # What each tracker leaves is left in each of the three batches. A heap grows by steps, some 400 KiB at a time,
    # until it has what three threads come to need, after 60 trackers or so: the batch that grew least tells. A log or
    # a buffer of the consumer's, 1 MiB each, would show, and so would a sixteenth of one.
    assert min(grown) < count * (64 << 10), f"{count} trackers left {grown} bytes"
    assert min(mappings) < count / 2
