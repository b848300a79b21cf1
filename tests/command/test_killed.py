"""The recorder, killed at random instants of its life: what it leaves is true, and nobody else notices."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import memtrack
from memtrack.container import FRAME_EVENTS
from memtrack.events import RECORD_BYTES, EventType, Member
from memtrack.reader import Reader
from memtrack.recording import Recording
from tests.bpf import harness
from tests.command.invocation import BpfObject, bpf_objects_of, gone, run, start, until

pytestmark = pytest.mark.bpf

OLD = Path(__file__).resolve().parents[1] / "data" / "version-1.zst"
PAGE_BYTES = os.sysconf("SC_PAGESIZE")
# Of a record with a figure: type, pid, member, bytes.
RECORD = struct.Struct("=B15xI4xi4xQ8x")
# What may be wrong with a file that has been cut: what is torn, if anything, and what is not there.
TORN = re.compile(
    r"(?:(?:frame \d+|the metadata) at offset \d+ is not whole|it ends inside what starts at offset \d+)"
    r": the file was cut(?:, or is damaged there)?"
)
MISSING = (
    "the end is missing: no trailer was written, or the file was cut",
    "its seek table is missing: the file was cut",
)


@pytest.fixture(scope="session")
def workloads() -> Path:
    return harness.build()


@pytest.fixture
def rng() -> random.Random:
    """Shown where the test fails; MEMTRACK_TEST_SEED repeats it, as far as instants can be repeated."""
    seed = int(os.environ.get("MEMTRACK_TEST_SEED", random.randrange(1 << 32)))
    print(f"MEMTRACK_TEST_SEED={seed}")
    return random.Random(seed)


@dataclass
class Run:
    """A recorder at work on a target that churns for as long as its standard input lasts, over an older recording."""

    folder: Path
    recorder: subprocess.Popen[bytes]

    @property
    def path(self) -> Path:
        return self.folder / "r"

    @property
    def churning(self) -> Path:
        """There as soon as the target's root is."""
        return self.folder / "pid"

    def kill(self) -> set[BpfObject]:
        """Returns what it held of the kernel."""
        held = bpf_objects_of(self.recorder.pid)
        self.recorder.kill()
        self.recorder.wait()
        return held

    def end_target(self) -> None:
        assert self.recorder.stdin
        self.recorder.stdin.close()


def begin(folder: Path, workloads: Path) -> Run:
    shutil.copy(OLD, folder / "r")
    script = f"echo $$ >{folder}/pid; {workloads}/neighbour; echo $? >{folder}/status"
    return Run(
        folder,
        start(
            "record", "-f", "-o", folder / "r", "--", "sh", "-c", script,
            stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        ),
    )  # fmt: skip


def session_of(leader: int) -> list[int]:
    """Who lives in it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text(errors="replace").rpartition(") ")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == leader and fields[0] not in "ZX":
            found.append(int(entry.parent.name))
    return found


def faults_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[7])


def examine(run_of: Run, held: set[BpfObject]) -> Recording | None:
    """After the recorder is gone: the kernel has nothing of it, the target goes on, and the file is true.

    None: the file is still the one from before.
    """
    if held:
        gone(held)
    assert not [entry for entry in run_of.folder.iterdir() if not is_expected(entry.name)]
    left = session_of(run_of.recorder.pid)
    busy = [pid for pid in left if Path(f"/proc/{pid}/comm").read_text() == "neighbour\n"]
    for pid in busy:
        before = faults_of(pid)
        until(lambda pid=pid, before=before: faults_of(pid) > before)  # type: ignore[misc]
    run_of.end_target()
    until(lambda: not session_of(run_of.recorder.pid))
    if left:
        assert (run_of.folder / "status").read_text() == "0\n"
    if run_of.path.read_bytes() == OLD.read_bytes():
        return None
    return true_prefix(run_of.path)


def is_expected(name: str) -> bool:
    """`.memtrack-` is the new recording's name for a moment, or on file systems that have no files without one."""
    return name in {"r", "pid", "status"} or name.startswith(".memtrack-")


def true_prefix(path: Path) -> Recording:
    with memtrack.open(path) as recording, Reader(path) as reader:
        whole = b"".join(reader.frames())
        # By an independent reader: what is more, if anything, is of the one frame that is torn.
        everything = subprocess.run(["zstd", "-dcq", path], capture_output=True, check=False).stdout
        assert everything.startswith(whole)
        assert len(everything) - len(whole) < FRAME_EVENTS * RECORD_BYTES
        assert sum(recording.event_counts.values()) * RECORD_BYTES == len(whole)
        if not recording.complete:
            *torn, missing = recording.problems
            assert missing in MISSING
            assert len(torn) <= 1
            assert all(TORN.fullmatch(problem) for problem in torn)
        no_hole(whole, {process.pid for process in recording.processes if process.comm == "neighbour"})
    assert run("report", path).code == 0
    return recording


def no_hole(records: bytes, targets: set[int]) -> None:
    """The command's start is first, and the target, which writes one page after the other, never leaps."""
    anon: dict[int, int] = {}
    order = [EventType.FORK, EventType.EXEC, EventType.SYNC]
    assert [record[0] for record in RECORD.iter_unpack(records[: 3 * RECORD_BYTES])] == (order if records else [])
    for kind, pid, member, size_bytes in RECORD.iter_unpack(records):
        if kind == EventType.LOST:
            anon.clear()
        elif kind == EventType.EXEC and pid in targets:
            anon[pid] = 1 << 62  # until its first figures
        elif kind in (EventType.RSS, EventType.SYNC) and member == Member.ANON and pid in anon:
            assert size_bytes <= anon[pid] + PAGE_BYTES
            anon[pid] = size_bytes


def spread(rng: random.Random, rounds: int, over_s: float) -> Iterator[float]:
    """So many random instants, one in each part of the time."""
    for number in range(rounds):
        yield over_s * (number + rng.random()) / rounds


@pytest.fixture
def seconds_to_start(tmp_path: Path, workloads: Path) -> float:
    """How long it takes here until the target runs."""
    (tmp_path / "once").mkdir()
    began = time.monotonic()
    trial = begin(tmp_path / "once", workloads)
    until(trial.churning.exists)
    needed = time.monotonic() - began
    trial.end_target()
    assert trial.recorder.wait() == 0
    return needed


def folder_of(tmp_path: Path, number: int) -> Path:
    folder = tmp_path / str(number)
    folder.mkdir()
    return folder


def test_before_the_target_runs(rng: random.Random, tmp_path: Path, workloads: Path, seconds_to_start: float) -> None:
    for number, delay_s in enumerate(spread(rng, 6, seconds_to_start)):
        killed = begin(folder_of(tmp_path, number), workloads)
        time.sleep(delay_s)
        held = killed.kill()
        recording = examine(killed, held)
        assert recording is None or not recording.complete


def test_while_it_churns(rng: random.Random, tmp_path: Path, workloads: Path) -> None:
    recorded = []
    for number, delay_s in enumerate(spread(rng, 6, 1.0)):
        killed = begin(folder_of(tmp_path, number), workloads)
        until(killed.churning.exists)
        time.sleep(delay_s)
        held = killed.kill()
        assert {kind for kind, _ in held} == {"map", "prog", "link"}
        assert session_of(killed.recorder.pid)
        recording = examine(killed, held)
        # The name is given when the command has started, which may have come further than the recorder.
        recorded.append(0 if recording is None else sum(recording.event_counts.values()))
        assert recording is None or not recording.complete
        if recording is not None and recorded[-1]:
            assert "EXIT" not in recording.event_counts
            assert {process.state for process in recording.processes} == {"alive"}
    assert 2 * sum(count > 0 for count in recorded) >= len(recorded), recorded


def test_while_the_end_is_written(rng: random.Random, tmp_path: Path, workloads: Path) -> None:
    """A recording may be complete by then: if so, the end of everybody is in it."""
    took_s = 0.0
    for number, part in enumerate([1.0, *spread(rng, 8, 1.0)]):
        killed = begin(folder_of(tmp_path, number), workloads)
        until(killed.churning.exists)
        time.sleep(0.3)
        killed.end_target()
        began = time.monotonic()
        if number == 0:
            assert killed.recorder.wait() == 0
            took_s = time.monotonic() - began
            held = set()
        else:
            time.sleep(part * took_s)
            held = killed.kill() if killed.recorder.poll() is None else set()
        recording = examine(killed, held)
        assert recording is not None
        assert recording.complete or killed.recorder.returncode == -signal.SIGKILL
        if recording.complete:
            assert recording.status.exit_code == 0
            assert {process.state for process in recording.processes} == {"ended"}
            assert {process.comm for process in recording.processes} == {"sh", "neighbour"}
