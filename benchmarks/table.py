"""Figures of one workload as rows of text, and as data."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.contenders import AGAIN, EMPTY, PERF, UNTRACED, Contender
from benchmarks.ratios import Spread, added, ratios
from benchmarks.rounds import Series
from benchmarks.workloads import Workload

HEADINGS = (
    "",
    "time, of untraced",
    "added",
    "of perf's",
    "of empty's",
    "elapsed",
    "recorder CPU",
    "disk",
    "per event",
    "events",
    "lost",
    "memory",
    "peak error",
)

LEGEND = """\
Each figure is the median over the rounds, with the lowest and the highest round in brackets. A round runs every
contender once, one after the other; what is compared stood in the same round. "Untraced, again" is the same as
untraced: what it shows is the machine's noise, not a cost.

  time, of untraced  CPU time of the target for one unit of its work, as a multiple of untraced
  added              what that is more than untraced, for one unit
  of perf's          the same as a part of what `perf record -e kmem:rss_stat` adds in the same round, where that is
                     more than noise
  of empty's         ... of what programs that do nothing add on memtrack's hooks (of the medians, which are small)
  elapsed            elapsed time of the target, as a multiple of untraced
  recorder CPU       CPU time of the recorder from its start to its end, as a part of the target's
  disk, per event    bytes written
  memory             the most memory the recorder held, apart from its ring buffer
  peak error         of the most memory that the tree held, against the target's own account of it
"""


# What perf adds must be more than this part of the untraced time in every round: a ratio to less would show noise only.
_VISIBLE = 0.05


def rows(series: Sequence[Series]) -> list[dict[str, Any]]:
    """One for each contender; figures that do not exist are None."""
    by_contender: dict[Contender, Series] = {one.contender: one for one in series}
    base, base_wall = _base(by_contender, "time_ns"), _base(by_contender, "wall_ns")
    perf = _times(by_contender, PERF, "time_ns")
    perf_added = added(perf, base)
    if any(cost < _VISIBLE * time for cost, time in zip(perf_added, base, strict=False)):
        perf_added = []  # and what is compared with even less goes too
    empty_added = added(_times(by_contender, EMPTY, "time_ns"), base)
    floor = statistics.median(empty_added) if empty_added and perf_added else 0.0
    return [_row(one, base, base_wall, perf_added, floor) for one in series]


def _times(by_contender: dict[Contender, Series], contender: Contender, name: str) -> list[float]:
    return [getattr(run, name) for run in by_contender[contender].runs] if contender in by_contender else []


def _base(by_contender: dict[Contender, Series], name: str) -> list[float]:
    """What was run untraced, round by round: the mean of both runs, where there were two."""
    first, again = (_times(by_contender, contender, name) for contender in (UNTRACED, AGAIN))
    return [statistics.mean(both) for both in zip(first, again, strict=True)] if again else first


def _row(
    series: Series,
    base: list[float],
    base_wall: list[float],
    perf_added: list[float],
    floor: float,
) -> dict[str, Any]:
    runs, output = series.runs, series.output
    row: dict[str, Any] = {"contender": series.contender.name, "absent": series.absent, "rounds": len(runs)}
    if not runs:
        return row
    times = [run.time_ns for run in runs]
    costs = added(times, base)
    target = [float(run.target_cpu_ns) for run in runs]
    row["time_ns"] = _plain(Spread.of(times))
    row["time"] = _plain(ratios(times, base))
    row["elapsed"] = _plain(ratios([run.wall_ns for run in runs], base_wall))
    if series.contender not in (UNTRACED, AGAIN):
        row["added_ns"] = _plain(Spread.of(costs))
        row["of_perf"] = _plain(ratios(costs, perf_added))
        row["of_empty"] = statistics.median(costs) / floor if floor > 0 else None
        if not series.contender.inside:
            recorder = [float(max(0, run.recorder_cpu_ns)) for run in runs]
            row["recorder_cpu"] = _plain(ratios(recorder, target))
            row["memory_bytes"] = max(
                (run.recorder_peak_bytes for run in runs if run.recorder_peak_bytes), default=None
            )
    row["disk_bytes"] = output.disk_bytes
    row["events"] = output.events
    row["lost"] = output.lost
    row["bytes_per_event"] = output.disk_bytes / output.events if output.disk_bytes and output.events else None
    truth = runs[0].truth_bytes
    row["peak_error"] = (output.peak_bytes - truth) / truth if truth and output.peak_bytes is not None else None
    row["statuses"] = sorted({run.status for run in runs})
    return row


def _plain(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else asdict(spread)


def text(workload: Workload, figures: Sequence[dict[str, Any]]) -> str:
    untraced = next(row for row in figures if row["contender"] == UNTRACED.name)
    of = "elapsed" if workload.whole else "CPU time"
    head = f"{workload.name}\n"
    scale = _scale(max((row["time_ns"]["median"] for row in figures if "time_ns" in row), default=0))
    if "time_ns" in untraced:
        head += (
            f"untraced: {_time(untraced['time_ns'], scale)} of {of} a {workload.unit}, {untraced['rounds']} rounds\n"
        )
    lines = [list(HEADINGS)]
    notes = []
    for row in figures:
        if row["absent"]:
            notes.append(f"  {row['contender']}: {row['absent']}")
        if "time_ns" in row:
            lines.append(_cells(row, scale))
        odd = [status for status in row.get("statuses", []) if status not in untraced.get("statuses", [])]
        if odd:
            notes.append(f"  {row['contender']}: ended with status {', '.join(map(str, odd))}")
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    body = ("  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip() for line in lines)
    return head + "\n".join([*body, *notes]) + "\n"


def _cells(row: dict[str, Any], scale: tuple[float, str]) -> list[str]:
    return [
        row["contender"],
        _ratio(row["time"]),
        _time(row.get("added_ns"), scale),
        _ratio(row.get("of_perf")),
        _number(row.get("of_empty"), "{:.1f}"),
        _ratio(row["elapsed"]),
        _ratio(row.get("recorder_cpu")),
        _size(row["disk_bytes"]),
        _number(row["bytes_per_event"], "{:.2f} B"),
        _number(row["events"], "{}"),
        _number(row["lost"], "{}"),
        _size(row.get("memory_bytes")),
        _number(row["peak_error"], "{:+.3%}"),
    ]


def _ratio(spread: dict[str, float] | None) -> str:
    return "" if spread is None else f"{spread['median']:.2f} ({spread['low']:.2f}..{spread['high']:.2f})"


def _scale(nanoseconds: float) -> tuple[float, str]:
    return (1.0, "ns") if nanoseconds < 1e4 else (1e3, "us") if nanoseconds < 1e7 else (1e6, "ms")


def _time(spread: dict[str, float] | None, scale: tuple[float, str]) -> str:
    if spread is None:
        return ""
    by, unit = scale
    digits = 0 if unit == "ns" else 1
    median, low, high = (f"{spread[name] / by:.{digits}f}" for name in ("median", "low", "high"))
    return f"{median} {unit} ({low}..{high})"


def _size(size_bytes: float | None) -> str:
    return "" if not size_bytes else f"{size_bytes / (1 << 20):.1f} MiB"


def _number(figure: float | None, form: str) -> str:
    return "" if figure is None else form.format(figure)
