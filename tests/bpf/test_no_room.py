"""What the kernel side has no room for: each counted apart, told, and taken in again when there is room."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from memtrack import Tracker, loader
from memtrack.loader import BUCKET_KEYS, Tally
from memtrack.recording import Recording
from tests.bpf import environment, harness
from tests.bpf.walked import walked
from tests.command.invocation import until

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("totals")]

# Of one address space, as in bpf/maps.bpf.h.
SHARERS_MAX = 32

PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}


@pytest.fixture(scope="session")
def workloads() -> Path:
    return harness.build()


@contextmanager
def running(tracker: Tracker, *command: object) -> Iterator[subprocess.Popen[bytes]]:
    """Killed with all that it started where it has not ended by itself."""
    with environment.no_khugepaged():
        process = tracker.spawn([str(word) for word in command], **PIPES, start_new_session=True)
        with process:
            try:
                yield process
                assert process.wait(60) == 0
            finally:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)


def says(stream: IO[bytes] | None) -> None:
    assert stream
    assert stream.read(1) == b"."


def children_of(pid: int) -> list[int]:
    """In the order in which they were made."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def tally(tracker: Tracker) -> Tally:
    return tracker._entered().tally()


def holds(tracker: Tracker, pids: Sequence[int]) -> bool:
    """Whether the tree is said to hold what these do, one of each address space."""
    held, truth = tracker.totals()[0], walked(pids)
    return (held.rss_bytes, held.anon_bytes) == (truth.rss_bytes, truth.anon_bytes)


def goes_on(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin
    process.stdin.write(b".")
    process.stdin.flush()


def test_more_address_spaces_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are half full at most, so that in all likelihood there is room where one must go: here all go there."""
    monkeypatch.setattr(loader, "_bucket_count", lambda _processes: 1)
    sleepers = 20
    script = f"for i in $(seq {sleepers}); do sleep 600 & done; printf .; wait"
    with Tracker(max_processes=64) as tracker:
        with running(tracker, "/bin/sh", "-c", script) as process:
            says(process.stdout)
            pids = children_of(process.pid)
            until(lambda: {Path(f"/proc/{pid}/comm").read_text() for pid in pids} == {"sleep\n"})
            counted = tally(tracker)
            # The shell and six others have come first.
            assert counted.spaces_full >= sleepers + 1 - BUCKET_KEYS
            assert counted.processes_full == counted.sharers_full == 0
            assert tracker.members == sleepers + 1
            until(lambda: tracker.lost_events == counted.spaces_full)
            until(lambda: tally(tracker).put_off)  # looked for in vain
            # Whoever gets one of those places then is taken in with all that it holds.
            for pid in pids[: sleepers - BUCKET_KEYS + 1]:
                os.kill(pid, signal.SIGKILL)
            left = [process.pid, *pids[sleepers - BUCKET_KEYS + 1 :]]
            until(lambda: holds(tracker, left))
            for pid in left[1:]:
                os.kill(pid, signal.SIGKILL)
        counted = tally(tracker)
    with tracker.recording as recording:
        assert lost_for_want_of_room(recording) == {"spaces": counted.spaces_full}
        assert not recording.complete
        (problem,) = recording.problems
        assert problem.startswith(f"{counted.spaces_full} times there was no room for a process")
        assert "--max-processes" in problem
        ended = {process.pid: process for process in recording.processes}
        assert all(ended[pid].last.rss_bytes for pid in left)


def test_more_sharers_of_an_address_space_than_are_remembered(workloads: Path) -> None:
    """When all of those have left, nobody knows of the others until all processes are looked at."""
    command = workloads / "sharing_groups", 1, SHARERS_MAX + 8
    with Tracker() as tracker, running(tracker, *command) as process:
        says(process.stdout)
        goes_on(process)  # whom it was shown under leaves
        says(process.stdout)
        sharers = children_of(process.pid)
        others = len(sharers) - SHARERS_MAX
        for pid in sharers[:SHARERS_MAX]:  # in the order in which they came
            assert not tally(tracker).sharers_full
            members = tracker.members
            os.kill(pid, signal.SIGTERM)
            until(lambda before=members: tracker.members < before)  # type: ignore[misc]
        assert tracker.members == 1 + others
        assert tally(tracker).sharers_full == 1
        until(lambda: holds(tracker, [process.pid, sharers[-1]]))
        truth = walked([sharers[-1]])
        assert process.stdin
        process.stdin.close()
    with tracker.recording as recording:
        told(recording, least=1)
        of_others = [process for process in recording.processes if process.pid in sharers[SHARERS_MAX:]]
        assert truth.rss_bytes in [process.peak.rss_bytes for process in of_others]


def test_as_many_are_remembered_in_all_as_there_is_room_for(workloads: Path) -> None:
    """Groups of as many as are remembered of one address space, which are more than the table has by default."""
    groups = loader.SHARERS // (1 + SHARERS_MAX) + 12
    with environment.alone():
        try:
            with environment.many_processes(groups * (1 + SHARERS_MAX) + 1) as prefix:
                shared_in_groups(workloads, prefix, groups)
        except environment.UnavailableError as reason:
            pytest.skip(str(reason))


def shared_in_groups(workloads: Path, prefix: Sequence[str], groups: int) -> None:
    command = *prefix, workloads / "sharing_groups", groups, SHARERS_MAX
    with Tracker(max_processes=2 * loader.SHARERS) as tracker, running(tracker, *command) as process:
        says(process.stdout)
        goes_on(process)  # whom each group was shown under leaves
        says(process.stdout)
        # One of each group.
        firsts = children_of(process.pid)[::SHARERS_MAX]
        assert len(firsts) == groups
        assert tracker.members == 1 + groups * SHARERS_MAX
        assert holds(tracker, [process.pid, *firsts])
        assert tally(tracker).left_out == 0
        assert process.stdin
        process.stdin.close()
    with tracker.recording as recording:
        assert recording.complete, recording.problems
        assert recording.lost_events == 0


def lost_for_want_of_room(recording: Recording) -> dict[str, int]:
    """What there was of it; from 7.0 on the kernel may skip programs besides."""
    losses = recording.losses or {}
    assert sum(losses.values()) == recording.lost_events
    return {name: count for name, count in losses.items() if count and name != "skipped"}


def told(recording: Recording, least: int) -> None:
    """Apart from other losses, and once for each time."""
    (problem,) = recording.problems
    sentence = "times memory was not seen for a while, because it was shared by more processes than are remembered"
    times, _, rest = problem.partition(" ")
    assert rest == sentence
    assert least <= int(times)
    assert lost_for_want_of_room(recording) == {"sharers": int(times)}
    assert recording.event_counts["LOST"] > 0
    assert not recording.complete
