"""How fast a recording is read: its report, beside what decompresses it and does nothing else."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import sample, watch
from benchmarks.ratios import Spread, ratios
from benchmarks.sample import RECORDS, Sample
from benchmarks.table import ratio
from memtrack.tracefile import Writer

_READERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("zstd -dc", ("zstd", "-dc")),
    ("memtrack report", (sys.executable, "-m", "memtrack", "report")),
    ("memtrack report --json", (sys.executable, "-m", "memtrack", "report", "--json")),
)


def measure(quick: bool) -> dict[str, Any]:
    """All readers in turn, several times; CPU time, elapsed time and memory of each."""
    of = sample.mixed()
    laps = -(-(1_000_000 if quick else 10_000_000) // RECORDS)
    with tempfile.TemporaryDirectory(prefix="memtrack-bench-") as directory:
        path = Path(directory) / "recording"
        _write(of, path, laps)
        runs = [[_run([*command, str(path)]) for _, command in _READERS] for _ in range(3)]
        size = path.stat().st_size
    plain = [turn[0] for turn in runs]
    rows = []
    for index, (name, _) in enumerate(_READERS):
        own = [turn[index] for turn in runs]
        rows.append(
            {
                "reader": name,
                "seconds": statistics.median(took.elapsed_ns for took in own) / 1e9,
                "elapsed": asdict(_of([took.elapsed_ns for took in own], [took.elapsed_ns for took in plain])),
                "cpu": asdict(_of([took.cpu_ns for took in own], [took.cpu_ns for took in plain])),
                "memory_bytes": max(took.peak_bytes for took in own),
            }
        )
    return {"events": laps * RECORDS, "disk_bytes": size, "rows": rows}


def _of(figures: Sequence[float], bases: Sequence[float]) -> Spread:
    spread = ratios(figures, bases)
    assert spread is not None
    return spread


def _write(of: Sample, path: Path, laps: int) -> None:
    with path.open("wb") as file:
        writer = Writer(file, of.header)
        for records in of.laps(laps):
            writer.write_frame(records)
        writer.finish({"events": {}, "lost_events": 0, "status": {"exit_code": 0, "signal": None}, "end_ns": 0})


def _run(command: list[str]) -> watch.Took:
    took = watch.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if took.status:
        raise subprocess.CalledProcessError(took.status, command)
    return took


def text(results: dict[str, Any]) -> str:
    lines = [
        f"reading a recording of {results['events']:,} events, {results['disk_bytes'] / (1 << 20):.1f} MiB",
        "",
        f"{'':24}{'elapsed':>10}{'of zstd':>20}{'CPU, of zstd':>20}{'memory':>12}",
    ]
    for row in results["rows"]:
        elapsed, cpu = (ratio(row[name]) for name in ("elapsed", "cpu"))
        memory = f"{row['memory_bytes'] / (1 << 20):.1f} MiB"
        lines.append(f"{row['reader']:24}{row['seconds']:>8.2f} s{elapsed:>20}{cpu:>20}{memory:>12}")
    return "\n".join(lines) + "\n"
