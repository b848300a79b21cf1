"""Many processes: what a recorder holds does not grow with them, and where there is no room, it says so."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

import memtrack
from memtrack import Tracker, consumer
from memtrack.loader import MAX_PROCESSES
from memtrack.recording import Recording
from memtrack.report import to_json_text, to_text
from tests.bpf import beside, environment, harness, points
from tests.bpf.own_memory import own_bytes
from tests.command.invocation import BpfObject, bpf_objects_of, gone, report, run, until

pytestmark = pytest.mark.bpf

PROCESSES = 100_000
# One after the other, which takes time, not memory: in an emulated guest a tenth of them takes as long.
IN_TURN = 10_000 if "VMTEST_RESULTS" in os.environ else PROCESSES
# What a process that was seen costs the recorder: docs/recorder.md has 0.8 KiB until there is a result. That is 720
# bytes of struct process in bpf/timeline.c, and 24 for each of two to four slots, six while the table grows.
SEEN_BYTES = 1 << 10
# ... and 1.5 KiB for a row of the result: numbers, a name and two layers' figures, in Python objects. The C side's are
# given back, but may have left holes in the heap.
PROCESS_BYTES = 2560
# What does not depend on the number of processes: the consumer's buffers, a frame in the making, the heap's own steps.
FIXED_BYTES = (consumer.BUFFERS + 2) << 20
# The same row, and what this test keeps of the same process: a note of the oracle's, and what it says.
PROCESS_AND_NOTE_BYTES = 4096
# Room for a process in the kernel's tables, as docs/recorder.md has it.
ROOM_BYTES = 1400
ROOM = 131_072
# Those of two recorders that are for no process: users of shared address spaces, settings, counts.
SMALL_TABLES_BYTES = 4 << 20
PARENTS = 100
# What each child of tests/workloads/storm.c writes.
STORM_PAGES = (200 << 10) // os.sysconf("SC_PAGESIZE")
SCREEN_LINES = 24


@pytest.fixture(scope="session")
def workloads() -> Path:
    return harness.build()


@dataclass(frozen=True)
class Storm:
    recording: Recording
    grown_bytes: int
    """While it is recorded still, and nobody of the tree lives any more."""
    held: set[BpfObject]


def storm(workloads: Path, rounds: int, events: bool) -> Storm:
    workers = 4
    before = own_bytes()
    with Tracker(events=events) as tracker:
        held = bpf_objects_of()
        assert tracker.spawn([workloads / "storm", str(workers), str(rounds // workers), "exit"]).wait(300) == 0
        assert tracker.members == 0
        grown = own_bytes() - before
    assert len(tracker.recording.processes) == rounds + workers + 1
    return Storm(tracker.recording, grown, held)


@pytest.mark.parametrize("events", [True, False], ids=["events", "totals"])
def test_processes_come_and_go(events: bool, workloads: Path, counters_are_percpu: bool) -> None:
    if not events and not counters_are_percpu:
        pytest.skip("before Linux 6.2 the kernel side keeps no totals")
    storm(workloads, 400, events).recording.close()
    before = own_bytes()
    storming = storm(workloads, IN_TURN, events)
    grown = own_bytes() - before
    with storming.recording as recording:
        assert recording.complete, recording.problems  # no map was full
        assert recording.lost_events == 0
        assert recording.processes_left == 0
        assert {process.state for process in recording.processes} == {"ended"}
        assert {kind: recording.event_counts.get(kind, 0) for kind in ("FORK", "EXEC", "EXIT")} == {
            "FORK": len(recording.processes),
            "EXEC": 1,
            "EXIT": len(recording.processes),
        }
        records = recording.event_counts.get("RSS", 0)
        # One for each page that a process touches; before Linux 6.2 for many at once.
        assert records > IN_TURN * (STORM_PAGES if counters_are_percpu else 0) if events else records == 0
    assert storming.grown_bytes < IN_TURN * SEEN_BYTES + FIXED_BYTES
    assert grown < IN_TURN * PROCESS_BYTES
    assert not bpf_objects_of()
    gone(storming.held)


# --- a hundred thousand at one time -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recorded:
    """One run of the workload under two recorders: one that has room for all, and one as it comes."""

    path: Path
    whole: Recording
    partial: Recording
    exact: bool
    """Whether the kernel's counters are; else they lag while processes live."""
    held_pages: dict[int, int]
    """By pid: what each held when all were there, by the kernel's walk of its page tables."""
    grown_bytes: int
    tables_bytes: list[int]
    recorders_seconds: float
    workload_seconds: float


def tables_bytes() -> int:
    """Of the maps that this process holds, without rings: what fdinfo says of them, each once."""
    maps = {}
    for entry in Path("/proc/self/fdinfo").iterdir():
        try:
            found = dict(re.findall(r"^(map_type|map_id|memlock):\t(\d+)$", entry.read_text(), re.MULTILINE))
        except FileNotFoundError:  # the listing's own
            continue
        if "map_id" in found and found["map_type"] != "27":  # BPF_MAP_TYPE_RINGBUF
            maps[found["map_id"]] = int(found["memlock"])
    return sum(maps.values())


def cpu_seconds(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


@pytest.fixture(scope="module")
def crowded(workloads: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    folder = tmp_path_factory.mktemp("crowd")
    told, path = folder / "told", folder / "recording.zst"
    command = [str(workloads / "crowd"), str(PARENTS), str(PROCESSES // PARENTS), "2"]
    with ExitStack() as stack:
        stack.enter_context(environment.alone())
        stack.enter_context(environment.no_khugepaged())
        try:
            prefix = stack.enter_context(environment.many_processes(PROCESSES + PARENTS + 1))
        except environment.UnavailableError as reason:
            pytest.skip(str(reason))
        before = own_bytes()
        whole = Tracker(stack.enter_context(path.open("w+b")), max_processes=ROOM, command=command)
        partial = Tracker()
        tables = [tables_bytes()]
        with whole, partial:
            tables.append(tables_bytes())
            used = [cpu_seconds(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
            both = [whole._entered(), partial._entered()]
            variables = os.environ | {"MEMTRACK_ORACLE": str(told)}
            with beside.spawned(both, [*prefix, *command], env=variables) as process:
                assert process.wait(600) == 0
            exact = whole.plan.counters_are_percpu
        recorders = cpu_seconds(resource.RUSAGE_SELF) - used[0]
        with whole.recording as first, partial.recording as second:
            oracle = points.read(told)
            (root,) = oracle.named("all there")
            held = {note.pid: note.pages for note in oracle.notes} | {root.pid: root.rss}
            workload = cpu_seconds(resource.RUSAGE_CHILDREN) - used[1]
            grown = own_bytes() - before
            yield Recorded(path, first, second, exact, held, grown, tables, recorders, workload)


def pages(figure_bytes: int | None) -> int | None:
    return None if figure_bytes is None else figure_bytes // os.sysconf("SC_PAGESIZE")


def test_a_hundred_thousand_processes_at_one_time(crowded: Recorded) -> None:
    """Nobody gives anything back before all are there, nor takes anything afterwards: what each held then is its peak,
    and the sum is the tree's. Before Linux 6.2 a process hands over what it has kept when it ends, the latest; what the
    tree held at one time can be too low by what all kept."""
    recording, held = crowded.whole, crowded.held_pages
    assert len(held) == PROCESSES + PARENTS + 1
    assert recording.complete, recording.problems
    assert recording.lost_events == 0
    assert recording.processes_left == 0
    assert {process.pid: pages(process.peak.rss_bytes) for process in recording.processes} == held
    assert len(recording.processes) == len(held)
    assert Counter((process.state, process.exit_code, process.signal) for process in recording.processes) == {
        ("ended", None, 9): PROCESSES,
        ("ended", 0, None): PARENTS + 1,
    }
    peak = pages(recording.peak.rss_bytes)
    assert peak is not None
    assert peak == sum(held.values()) if crowded.exact else peak <= sum(held.values())
    assert recording.peak.processes == len(held)


def test_with_less_room_what_is_recorded_is_true(crowded: Recorded) -> None:
    """The table is full until the first ones are killed, and so the tree of the recording is the same until then. Who
    is taken in afterwards is no larger than those who made room, but for the difference between the largest."""
    recording, held = crowded.partial, crowded.held_pages
    assert not recording.complete
    (problem,) = recording.problems
    assert "no room for a process" in problem
    assert "--max-processes" in problem
    assert recording.processes_left == 0
    from_start = [process for process in recording.processes if process.start_ns is not None]
    # Of a parent that there was no room for nobody knows the children.
    parents = sum(process.ppid == from_start[0].pid for process in from_start)
    assert 0 < parents <= PARENTS
    unknown = (PARENTS - parents) * (PROCESSES // PARENTS)
    assert recording.lost_events
    assert recording.lost_events >= len(held) - MAX_PROCESSES - unknown
    adopted = [process for process in recording.processes if process.start_ns is None]
    assert len(from_start) == MAX_PROCESSES
    for process in from_start:
        assert pages(process.peak.rss_bytes) == held[process.pid], process
    for process in adopted:
        # None: it was about to end.
        assert pages(process.peak.rss_bytes) in (None, held[process.pid]), process
    least, most = sum(held[process.pid] for process in from_start), sum(sorted(held.values())[-MAX_PROCESSES:])
    peak = pages(recording.peak.rss_bytes)
    assert peak is not None
    assert least <= peak <= most if crowded.exact else peak <= most
    assert recording.peak.processes == MAX_PROCESSES


def test_recorders_of_a_hundred_thousand_take_what_is_documented(crowded: Recorded) -> None:
    rows = len(crowded.whole.processes) + len(crowded.partial.processes)
    assert crowded.grown_bytes < rows * PROCESS_AND_NOTE_BYTES
    before, during = crowded.tables_bytes
    assert before == 0
    assert during < (ROOM + MAX_PROCESSES) * ROOM_BYTES + SMALL_TABLES_BYTES
    # Both, the one that looks for those without room again and again too.
    assert crowded.recorders_seconds < crowded.workload_seconds / 2
    assert not bpf_objects_of()


def test_a_recording_of_a_hundred_thousand_can_be_read(crowded: Recorded) -> None:
    with memtrack.open(crowded.path) as recording:
        assert recording.processes == crowded.whole.processes
        assert recording.peak == crowded.whole.peak
        assert sum(1 for _ in recording.events()) == sum(recording.event_counts.values())
        lines = to_text(recording).splitlines()
        assert len(lines) <= SCREEN_LINES
        assert "more, none above" in lines[-1]
        assert len(json.loads(to_json_text(recording))["processes"]) == len(recording.processes)


# --- no room ----------------------------------------------------------------------------------------------------------

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
    assert re.fullmatch(r"memtrack: \d+ events were lost \(.*--max-processes\)", done.err.splitlines()[-1])
    said = report(path)
    assert not said["complete"]
    # Some were taken in as soon as others had gone.
    assert 0 < said["lost_events"] <= SLEEPERS
    assert len(said["processes"]) >= 8
    done = run("record", "--max-processes", "64", "--strict", "-f", "-o", path, "--", *crowd(0.2))
    assert done.code == 0
    assert report(path)["complete"]
    assert len(report(path)["processes"]) == SLEEPERS + 2  # and seq


def sleepers(count: int) -> subprocess.Popen[bytes]:
    """A shell and so many children, all there."""
    script = f"for i in $(seq {count}); do sleep 600 & done; echo there; wait"
    process = subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    with process.stdout as said:
        assert said.readline() == b"there\n"
    return process


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def end(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_of_an_adopted_tree_too(tmp_path: Path) -> None:
    process = sleepers(12)
    try:
        with (tmp_path / "recording").open("w+b") as output:
            with Tracker(output, max_processes=8) as tracker:
                assert tracker.adopt(process.pid) == 8
                for child in children_of(process.pid)[:6]:
                    os.kill(child, signal.SIGKILL)
                until(lambda: tracker.members == 1 + 12 - 6)
            recording = tracker.recording
    finally:
        end(process)
    assert not recording.complete
    (problem,) = recording.problems
    assert "no room" in problem
    assert "--max-processes" in problem
    assert recording.lost_events == 0
    assert all(process.last.rss_bytes for process in recording.processes if process.state == "alive")


@pytest.mark.usefixtures("late_consumer")
def test_a_ring_without_room_for_an_adopted_tree() -> None:
    """A page takes its 31 ADOPT and not its figures, which are told when the consumer has come by."""
    process = sleepers(30)
    try:
        with Tracker(ring_bytes=os.sysconf("SC_PAGESIZE")) as tracker:
            assert tracker.adopt(process.pid) == 31
        with tracker.recording as recording:
            assert recording.complete, recording.problems
            assert recording.lost_events == 0
            assert [process.state for process in recording.processes] == ["alive"] * 31
            assert all(process.last.rss_bytes for process in recording.processes)
    finally:
        end(process)


def test_who_was_left_out_is_taken_in_when_there_is_room() -> None:
    """The last ones start when the table is full, and outlive those who fill it."""
    script = "for i in 1 2 3 4 5 6 7; do sleep 0.5 & done; sleep 30 & a=$!; sleep 30 & sleep 2; kill $a $!; wait"
    with Tracker(max_processes=8) as tracker:
        process = tracker.spawn(["/bin/sh", "-c", script], stderr=subprocess.DEVNULL)
        time.sleep(1.5)
        assert tracker.members == 4
        process.wait(60)
    with tracker.recording as recording:
        assert recording.event_counts["ADOPT"] >= 2
        adopted = [process for process in recording.processes if process.start_ns is None]
        assert all(process.last.rss_bytes for process in adopted)
        assert not recording.complete
