"""One run of one contender on one workload, and rounds of them."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import programs, watch
from benchmarks.contenders import Contender, Output, Place
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
    status: int


@dataclass
class Series:
    """One contender's runs on one workload, one a round."""

    contender: Contender
    absent: str | None = None
    runs: list[Measurement] = field(default_factory=list)
    output: Output = field(default_factory=Output)


def run(
    workload: Workload, contenders: Sequence[Contender], rounds: int, progress: Callable[[str], None]
) -> list[Series]:
    """All contenders, one after the other in every round, so that what the machine does meanwhile hits them all."""
    fitting = [contender for contender in contenders if workload.name.startswith(contender.only)]
    all_series = [Series(contender, _absent(contender, workload)) for contender in fitting]
    for number in range(rounds):
        present = [series for series in all_series if series.absent is None]
        for series in present if number % 2 == 0 else reversed(present):
            progress(f"round {number + 1} of {rounds}: {series.contender.name}")
            with tempfile.TemporaryDirectory(prefix="memtrack-bench-") as directory:
                place = Place(Path(directory))
                try:
                    series.runs.append(_measure(series.contender, workload, place))
                    if number == 0:
                        series.output = series.contender.read(place)
                except (OSError, RunError, subprocess.SubprocessError) as error:
                    series.absent = f"failed: {error}"
    return all_series


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
        truth_bytes=None if truth_bytes is None else truth_bytes + metered["meter_rss_bytes"],
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
