"""The figures of one workload: a row for each contender, as plain data."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks import truth
from benchmarks.contenders import AGAIN, EMPTY, MEMTRACK_DEFAULT, PERF, STARVED, UNTRACED, Contender
from benchmarks.ratios import Spread, added, ratios, visible
from benchmarks.rounds import Series

Row = dict[str, Any]


def rows(series: Sequence[Series]) -> list[Row]:
    """One for each contender; figures that do not exist are None. Ratios are taken within a round."""
    by_contender: dict[Contender, Series] = {one.contender: one for one in series}
    base, base_wall = _base(by_contender, "time_ns"), _base(by_contender, "wall_ns")
    first, again = (_times(by_contender, contender, "time_ns") for contender in (UNTRACED, AGAIN))
    noise = [abs(cost) for cost in added(again, first)]
    compared = {}
    for name, contender in (("of_perf", PERF), ("of_empty", EMPTY)):
        costs = added(_times(by_contender, contender, "time_ns"), base)
        compared[name] = costs if visible(costs, base, noise) else []
    found = [_row(one, base, base_wall, compared) for one in series]
    for row in found:
        if row["contender"] == STARVED.name and "time" in row:
            default, starved = (_times(by_contender, one, "time_ns") for one in (MEMTRACK_DEFAULT, STARVED))
            row["of_default"] = _plain(ratios(starved, default))
    return found


def wrong(found: Sequence[Row]) -> list[str]:
    """What should be exact and is not."""
    return [
        f"{row['contender']}: a process's figures are {row['figures_off_bytes']:+,} bytes from what it reads itself"
        for row in found
        if row.get("figures_off_bytes")
    ]


def _times(by_contender: dict[Contender, Series], contender: Contender, name: str) -> list[float]:
    return [getattr(run, name) for run in by_contender[contender].runs] if contender in by_contender else []


def _base(by_contender: dict[Contender, Series], name: str) -> list[float]:
    """What was run untraced, round by round: the mean of both runs, where there were two."""
    first, again = (_times(by_contender, contender, name) for contender in (UNTRACED, AGAIN))
    return [statistics.mean(both) for both in zip(first, again, strict=True)] if again else first


def _row(series: Series, base: list[float], base_wall: list[float], compared: dict[str, list[float]]) -> Row:
    runs = series.runs
    row: Row = {"contender": series.contender.name, "absent": series.absent, "rounds": len(runs)}
    if not runs:
        return row
    times, walls = [run.time_ns for run in runs], [run.wall_ns for run in runs]
    row["time_ns"], row["wall_ns"] = _plain(Spread.of(times)), _plain(Spread.of(walls))
    row["time"], row["elapsed"] = _plain(ratios(times, base)), _plain(ratios(walls, base_wall))
    row["rate"] = _plain(ratios(base_wall, walls))
    row["statuses"] = sorted({run.status for run in runs})
    if series.contender in (UNTRACED, AGAIN):
        return row
    costs = added(times, base)
    row["added_ns"] = _plain(Spread.of(costs))
    for name, others in compared.items():
        row[name] = _plain(ratios(costs, others))
    if not series.contender.inside:
        recorder = [float(max(0, run.recorder_cpu_ns)) for run in runs]
        row["recorder_cpu"] = _plain(ratios(recorder, [float(run.target_cpu_ns) for run in runs]))
        row["memory_bytes"] = max((run.recorder_peak_bytes for run in runs if run.recorder_peak_bytes), default=None)
    return row | _said(series) | _errors(series)


def _said(series: Series) -> Row:
    """What the recorder wrote and lost."""
    outputs = series.outputs
    shares = [one.lost / ((one.events or 0) + one.lost) for one in outputs if one.lost]
    return {
        "disk_bytes": _median(one.disk_bytes for one in outputs),
        "events": _median(one.events for one in outputs),
        "bytes_per_event": _median(one.disk_bytes / one.events for one in outputs if one.disk_bytes and one.events),
        "lost": max((one.lost for one in outputs if one.lost is not None), default=None),
        "lost_share": _plain(Spread.of(shares)),
    }


def _errors(series: Series) -> Row:
    pairs = list(zip(series.runs, series.outputs, strict=True))
    figures = [truth.figures_off_bytes(*pair) for pair in pairs]
    return {
        "peak_error": _worst(truth.peak_error(*pair) for pair in pairs),
        "largest_off_bytes": _worst(truth.largest_off_bytes(*pair) for pair in pairs),
        "figures": max(map(len, figures), default=0),
        "figures_off_bytes": _worst(off for found in figures for off in found.values()),
    }


def _median(figures: Iterable[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return statistics.median(known) if known else None


def _worst(errors: Iterable[float | None]) -> float | None:
    """The one that is furthest from nothing."""
    return max((error for error in errors if error is not None), key=abs, default=None)


def _plain(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else asdict(spread)
