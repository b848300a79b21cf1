"""Who is measured: a table. A contender that cannot run here says why, and the others go on without it."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import programs

MEMTRACK = (sys.executable, "-m", "memtrack")


@dataclass(frozen=True)
class Place:
    """Where one run puts its files."""

    directory: Path

    @property
    def recording(self) -> Path:
        return self.directory / "recording"

    @property
    def report(self) -> Path:
        return self.directory / "report"


@dataclass(frozen=True)
class Output:
    """What a recorder has to say. None: it does not say."""

    disk_bytes: int | None = None
    events: int | None = None
    lost: int | None = None
    peak_bytes: int | None = None
    """Of the tree."""
    largest_bytes: int | None = None
    """The peak of the process whose peak is the largest."""
    processes: Mapping[int, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)
    """By pid, `peak` and `last`: the sizes of each kind of memory, by the names that memtrack's report has."""


@dataclass(frozen=True)
class Contender:
    name: str
    wrap: Callable[[Place, list[str]], list[str]]
    """The command that records a command."""
    read: Callable[[Place], Output] = lambda _: Output()
    absent: Callable[[], str | None] = lambda: None
    inside: bool = False
    """It is a part of the target, which it changes, and not a process beside it."""
    only: str = ""
    """What the workloads that it is for begin with; others have nothing to show for it."""


UNTRACED = Contender("untraced", lambda _, command: command)
# The same again, for what differs between two of these is nobody's doing.
AGAIN = Contender("untraced, again", lambda _, command: command)
EMPTY = Contender(
    "empty BPF programs",
    lambda _, command: [programs.linked_with_libbpf("attach"), programs.bpf_object("empty"), *command],
)


def _record(place: Place, command: list[str], *options: str) -> list[str]:
    files = [] if "--summary" in options else ["-o", str(place.recording)]
    return [*MEMTRACK, "record", "-f", *files, "--json", str(place.report), *options, "--", *command]


def _memtrack(*options: str) -> Contender:
    return Contender(
        " ".join(("memtrack", *options)),
        lambda place, command: _record(place, command, *options),
        _read_memtrack,
        lambda: _option_absent(options),
    )


def _starved(place: Place, command: list[str]) -> list[str]:
    """While the target runs, the recorder gets what that leaves of its own CPU, next to nothing, and a ring that is
    full in two milliseconds: what it can take is less than a tenth of what there is."""
    meter, *rest = command
    cpu = str(max(os.sched_getaffinity(0)))
    return ["taskset", "-c", cpu, *_record(place, [meter, "--starve", *rest], "--ring-size", "64KiB")]


def _read_memtrack(place: Place) -> Output:
    report: dict[str, Any] = json.loads(place.report.read_text())
    processes = report["processes"]
    return Output(
        disk_bytes=place.recording.stat().st_size if place.recording.exists() else 0,
        events=sum(report["events"].values()),
        lost=report["lost_events"],
        peak_bytes=report["peak"]["rss_bytes"],
        largest_bytes=max((process["peak"]["rss_bytes"] or 0 for process in processes), default=None),
        processes={process["pid"]: {what: process[what] for what in ("peak", "last")} for process in processes},
    )


@functools.cache
def _record_help() -> str:
    return subprocess.run([*MEMTRACK, "record", "--help"], check=True, capture_output=True, text=True).stdout


def _option_absent(options: tuple[str, ...]) -> str | None:
    missing = [option for option in options if option.startswith("--") and option not in _record_help()]
    return f"record has no {' '.join(missing)}" if missing else None


def _perf(place: Place, command: list[str]) -> list[str]:
    return ["perf", "record", "-q", "-e", "kmem:rss_stat", "-o", str(place.recording), "--", *command]


PERF_EVENT = re.compile(r"mm_id=(\d+) .*type=MM_(\w+) size=(-?\d+)B", re.ASCII)
_PERF_LOST = re.compile(r"PERF_RECORD_LOST.* lost (\d+)", re.ASCII)


def _read_perf(place: Place) -> Output:
    """Events, and the peak that can be had from them: they name an address space by a hash, and no process's end."""
    command = ["perf", "script", "-i", str(place.recording), "--show-lost-events", "-F", "event,trace"]
    events = lost = total = peak = 0
    sizes: dict[tuple[str, str], int] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as script:
        assert script.stdout is not None
        for line in script.stdout:
            if event := PERF_EVENT.search(line):
                events += 1
                if event[2] != "SWAPENTS":
                    key = (event[1], event[2])
                    total += int(event[3]) - sizes.get(key, 0)
                    sizes[key] = int(event[3])
                    peak = max(peak, total)
            elif loss := _PERF_LOST.search(line):
                lost += int(loss[1])
    return Output(place.recording.stat().st_size, events, lost, peak)


# The largest value of each counter of each address space of the machine. It follows no tree, so it has no peak of one.
_BPFTRACE = "tracepoint:kmem:rss_stat { @[args->mm_id, args->member] = max(args->size); }"


def _bpftrace(place: Place, command: list[str]) -> list[str]:
    return ["bpftrace", "-q", "-o", str(place.report), "-e", _BPFTRACE, "-c", shlex.join(command)]


def _bpftrace_absent() -> str | None:
    if not shutil.which("bpftrace"):
        return "not installed"
    tried = subprocess.run(["bpftrace", "-e", _BPFTRACE, "-c", "/bin/true"], capture_output=True, text=True)
    return None if tried.returncode == 0 else f"does not run: {last_error(tried.stderr)}"


def last_error(said: str) -> str:
    """The line in which bpftrace says what ended it: behind it are the program once more and its place, underlined."""
    lines = said.splitlines()
    return next((line.strip() for line in reversed(lines) if "ERROR" in line), said.strip() or "it does not say why")


def _psutil(place: Place, command: list[str]) -> list[str]:
    return [sys.executable, "-m", "benchmarks.poll", str(place.report), *command]


def _read_psutil(place: Place) -> Output:
    return Output(peak_bytes=int(place.report.read_text()))


def _memray(place: Place, command: list[str]) -> list[str]:
    assert command[0] == sys.executable
    return [command[0], "-m", "memray", "run", "-q", "-f", "--follow-fork", "-o", str(place.recording), *command[1:]]


def _read_memray(place: Place) -> Output:
    return Output(disk_bytes=sum(path.stat().st_size for path in place.directory.glob("recording*")))


def _program_absent(name: str) -> Callable[[], str | None]:
    return lambda: None if shutil.which(name) else "not installed"


def _module_absent(name: str) -> Callable[[], str | None]:
    return lambda: None if importlib.util.find_spec(name) else "not installed"


MEMTRACK_DEFAULT = _memtrack()
PERF = Contender("perf record", _perf, _read_perf, _program_absent("perf"))

# What it loses must not show in its figures, nor cost the target more than what is not lost.
STARVED = Contender("memtrack, starved", _starved, _read_memtrack, only="page-fault storm")

# In this order in every round, and the other way round in every second one.
CONTENDERS = (
    UNTRACED,
    EMPTY,
    MEMTRACK_DEFAULT,
    _memtrack("--resolution", "64KiB"),
    _memtrack("--summary"),
    STARVED,
    AGAIN,
    PERF,
    Contender("bpftrace, maxima", _bpftrace, absent=_bpftrace_absent),
    Contender("psutil every 10 ms", _psutil, _read_psutil, _module_absent("psutil")),
    Contender("memray", _memray, _read_memray, _module_absent("memray"), inside=True),
)
