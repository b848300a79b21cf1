"""What is recorded: a table."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import programs

_LAST_CPU = str(max(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else "-1"


@dataclass(frozen=True)
class Workload:
    name: str
    unit: str
    """What one figure of its time is of."""
    command: Callable[[Path], list[str]]
    """For a scratch directory."""
    rounds: int
    quick_rounds: int
    pinned: bool = False
    """It stays on the last CPU, and the recorders on the others."""
    whole: bool = False
    """Its time is that of the recorder from start to end."""
    rate: bool = False
    """How many units it does in a second is what matters, more than how long it takes."""
    python: bool = False
    absent: Callable[[], str | None] = lambda: None


def _program_absent(name: str) -> Callable[[], str | None]:
    return lambda: None if shutil.which(name) else f"{name} is not installed"


def _available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def _build(scratch: Path) -> list[str]:
    return ["make", "-s", "-B", "-j2", "-C", str(programs.ROOT), "-f", "tools/demo.mk", f"OUT={scratch}"]


# Those that need neither root nor a compiler and take no longer than seconds; some start processes of their own.
_TESTS = ("test_display", "test_recording", "test_report", "test_tracefile")


def _tests(_: Path) -> list[str]:
    files = [str(programs.ROOT / "tests" / "unit" / f"{name}.py") for name in _TESTS]
    return [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--hypothesis-seed=0",
        "-c",
        str(programs.ROOT / "pyproject.toml"),
        *files,
    ]


WORKLOADS = (
    Workload(
        "page-fault storm: one thread touches and gives back 32 MiB, again and again",
        "page",
        lambda _: [programs.program("faults"), "32", "12", "1", _LAST_CPU],
        rounds=15,
        quick_rounds=2,
        pinned=True,
    ),
    Workload(
        "one thread touches 2 GiB once, as fast as it can",
        "page",
        lambda _: [programs.program("faults"), "2048", "1", "1", _LAST_CPU],
        rounds=3,
        quick_rounds=1,
        pinned=True,
        absent=lambda: None if _available_bytes() > 3 << 30 else "too little memory",
    ),
    Workload(
        "four threads of one process fault in 32 MiB, again and again",
        "page",
        lambda _: [programs.program("faults"), "32", "12", "4", "-1"],
        rounds=8,
        quick_rounds=2,
    ),
    Workload(
        "fork and exec storm: posix_spawn of a static program that does nothing, back to back",
        "process",
        lambda _: [programs.program("spawn"), "150", "6", _LAST_CPU, programs.program("nothing")],
        rounds=12,
        quick_rounds=2,
        pinned=True,
        rate=True,
    ),
    Workload(
        "start to end of the recorder, around a program that does nothing",
        "run",
        lambda _: [programs.program("nothing")],
        rounds=10,
        quick_rounds=2,
        whole=True,
    ),
    Workload(
        "make -j2 of memtrack's C sources, with two compilers",
        "build",
        _build,
        rounds=5,
        quick_rounds=1,
        absent=_program_absent("clang"),
    ),
    Workload(
        "a Python test suite: memtrack's tests of reading and reporting",
        "run",
        _tests,
        rounds=4,
        quick_rounds=1,
        python=True,
    ),
    Workload(
        "Redis under load, with a background save meanwhile",
        "run",
        lambda _: [str(programs.SOURCES / "redis-load.sh"), "100000"],
        rounds=5,
        quick_rounds=1,
        absent=_program_absent("redis-server"),
    ),
)
