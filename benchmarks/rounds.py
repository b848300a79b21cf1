"""One run of one contender on one workload, and rounds of them."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import programs, watch
from benchmarks.contenders import UNTRACED, Contender, Output, Place
from benchmarks.workloads import Workload


class RunError(Exception):
    """A contender failed on a workload; says how."""


@dataclass(frozen=True)
class Measurement:
    time_ns: float
    """CPU time of the target for one unit of its work, which no other process of the machine adds to; or, where the
    recorder as a whole is measured, the time that it takes."""
    wall_ns: float
    """Elapsed, for one unit."""
    target_cpu_ns: int
    recorder_cpu_ns: int
    recorder_peak_bytes: int | None
    truth_bytes: int | None
    """What the tree held at most by the target's own account."""
    largest_bytes: int
    """What the largest process below the meter held at most by the kernel's account: ru_maxrss, see truth.py."""
    held: Sequence[Mapping[str, Any]]
    """What processes of ours read of themselves: `pid`, and as in Output.processes `peak`, `last` or both."""
    status: int


@dataclass
class Series:
    """One contender's runs on one workload, one a round."""

    contender: Contender
    absent: str | None = None
    runs: list[Measurement] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)


def run(
    workload: Workload, contenders: Sequence[Contender], rounds: int, progress: Callable[[str], None]
) -> list[Series]:
    """All contenders, one after the other in every round, so that what the machine does meanwhile hits them all.

    One run before the first round counts for nothing. It has the files cached, and the memory that the target takes has
    been the machine's before: a virtual machine gets it from its host when it is first touched, at the host's leisure.
    """
    fitting = [contender for contender in contenders if workload.name.startswith(contender.only)]
    all_series = [Series(contender, _absent(contender, workload)) for contender in fitting]
    progress("warming up")
    with suppress(RunError, OSError, subprocess.SubprocessError):
        _one_run(UNTRACED, workload)
    for number in range(rounds):
        present = [series for series in all_series if series.absent is None]
        for series in present if number % 2 == 0 else reversed(present):
            progress(f"round {number + 1} of {rounds}: {series.contender.name}")
            try:
                measurement, output = _one_run(series.contender, workload)
            except (OSError, RunError, subprocess.SubprocessError) as error:
                series.absent = f"failed: {error}"
            else:
                series.runs.append(measurement)
                series.outputs.append(output)
    return all_series


def _one_run(contender: Contender, workload: Workload) -> tuple[Measurement, Output]:
    with tempfile.TemporaryDirectory(prefix="memtrack-bench-") as directory:
        place = Place(Path(directory))
        measurement = _measure(contender, workload, place)
        return measurement, contender.read(place)


def _absent(contender: Contender, workload: Workload) -> str | None:
    if contender.inside and not workload.python:
        return "for Python programs only"
    return contender.absent()


def _measure(contender: Contender, workload: Workload, place: Place) -> Measurement:
    scratch, figures = place.directory / "scratch", place.directory / "figures"
    printed, said = place.directory / "stdout", place.directory / "stderr"
    scratch.mkdir()
    meter = [programs.program("meter"), str(figures)]
    command = workload.command(scratch)
    if contender.inside:
        command = [*meter, *contender.wrap(place, command)]
    else:
        command = contender.wrap(place, [*meter, *command])
    cpus = os.sched_getaffinity(0)
    with printed.open("wb") as stdout, said.open("wb") as stderr:
        if workload.pinned and len(cpus) > 1:
            os.sched_setaffinity(0, cpus - {max(cpus)})
        try:
            took = watch.run(command, stdout=stdout, stderr=stderr)
        finally:
            os.sched_setaffinity(0, cpus)
    if not figures.exists() or not figures.stat().st_size:
        raise RunError(said.read_text(errors="replace").strip()[-200:] or f"status {took.status}")
    metered = json.loads(figures.read_text())
    counted = _counted(printed)
    truth_bytes = counted.get("rss_bytes")
    return Measurement(
        time_ns=took.elapsed_ns if workload.whole else _median(counted, "unit_ns", metered["cpu_ns"]),
        wall_ns=took.elapsed_ns if workload.whole else _median(counted, "unit_wall_ns", metered["wall_ns"]),
        target_cpu_ns=metered["cpu_ns"],
        recorder_cpu_ns=took.cpu_ns - metered["cpu_ns"],
        # A recorder that does not last is hardly seen.
        recorder_peak_bytes=None if workload.whole else took.peak_bytes,
        truth_bytes=None if truth_bytes is None else truth_bytes + sum(metered["held"]["last"].values()),
        largest_bytes=metered["largest_bytes"],
        held=[of["held"] for of in (metered, counted) if "held" in of],
        status=took.status,
    )


def _counted(printed: Path) -> dict[str, Any]:
    """What a target of ours measured itself."""
    for line in printed.read_text(errors="replace").splitlines():
        if line.startswith('{"unit_ns"'):
            counted: dict[str, Any] = json.loads(line)
            return counted
    return {}


def _median(counted: dict[str, Any], name: str, otherwise: float) -> float:
    """Of all repetitions but the first, which finds cold caches."""
    figures = counted.get(name)
    return statistics.median(figures[1:] or figures) if figures else otherwise
