"""How a workload is run under a tracker; most are simply spawned."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from memtrack import Tracker
from tests.bpf import points

# Under QEMU's emulation everything takes ten times as long as the seconds it takes here.
TIMEOUT_S = 300
POLL_S = 0.02


@dataclass
class Session:
    """One run: what to start and how, and what a check may want to know of it afterwards."""

    tracker: Tracker
    command: Sequence[str | bytes]
    environment: Mapping[str, str]
    folder: Path
    """For files of the run; goes away after it."""
    report_path: Path
    returncode: int | None = None
    strangers: list[int] = field(default_factory=list)
    """Processes that are none of the tree's."""

    def report(self) -> points.Report:
        return points.read(self.report_path) if self.report_path.exists() else points.parse([])

    def spawn(self, command: Sequence[str | bytes] | None = None, **options: Any) -> subprocess.Popen[bytes]:
        return self.tracker.spawn(command or self.command, env=self.environment, **options)

    def wait(self, process: subprocess.Popen[bytes]) -> None:
        try:
            self.returncode = process.wait(TIMEOUT_S)
        except BaseException:
            _kill_tree(process)
            raise


Driver = Callable[[Session], None]


def spawned(session: Session) -> None:
    session.wait(session.spawn())


def muted(session: Session) -> None:
    """For programs that talk; what they said is shown where they failed."""
    log = session.folder / "output"
    with log.open("wb") as output:
        session.wait(session.spawn(stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT))
    if session.returncode:
        sys.stderr.write(log.read_text(errors="replace"))


def adopted(session: Session) -> None:
    """Starts the workload unwatched, and takes it in when it says that it is ready."""
    process = subprocess.Popen(session.command, env=session.environment, stdin=subprocess.PIPE)
    try:
        _await(lambda: any(note.name == "ready" for note in session.report().notes), process)
        session.tracker.adopt(process.pid)
        _stdin(process).write(b"\n")
        _stdin(process).close()
    except BaseException:
        _kill_tree(process)
        raise
    session.wait(process)


def beside_neighbours(session: Session) -> None:
    """With untracked processes that fault as hard as they can: as many as there are CPUs, but one."""
    neighbour = Path(os.fsdecode(session.command[0])).with_name("neighbour")
    with contextmanager(_neighbours)(neighbour, max(1, (os.cpu_count() or 1) - 1)) as pids:
        session.strangers += pids
        spawned(session)


def _neighbours(program: Path, count: int) -> Iterator[list[int]]:
    running = [subprocess.Popen([program], stdin=subprocess.PIPE) for _ in range(count)]
    try:
        yield [process.pid for process in running]
    finally:
        for process in running:
            _stdin(process).close()
        for process in running:
            process.wait(TIMEOUT_S)


def from_a_large_process(session: Session) -> None:
    """With a spawner that holds 400 MiB: none of it is the command's."""
    ballast = bytearray(400 << 20)
    ballast[:: os.sysconf("SC_PAGESIZE")] = b"x" * -(-len(ballast) // os.sysconf("SC_PAGESIZE"))
    spawned(session)
    del ballast


def _stdin(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdin is not None
    return process.stdin


def _await(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if process.poll() is not None:
            raise RuntimeError(f"the workload ended with {process.returncode} before it was ready")
        if time.monotonic() > deadline:
            raise TimeoutError("the workload was never ready")
        time.sleep(POLL_S)


def _kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Ends a workload that hangs, and what it started."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(status.parent.name))
    waiting = [process.pid]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, [])
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            continue
    process.wait()
