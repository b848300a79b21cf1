"""Figures of one workload as text that fits a code block of a document: no line is longer than WIDTH."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import truth
from benchmarks.contenders import UNTRACED
from benchmarks.figures import Row
from benchmarks.workloads import Workload

WIDTH = 120
# From here on hundredths are of no interest.
_LARGE = 10

LEGEND = """\
Each figure is the median over the rounds, with the lowest and the highest round in brackets. A round runs every
contender once, one after the other; what is compared stood in the same round. "Untraced, again" is the same as
untraced: what it shows is the machine's noise, not a cost. The base is the mean of both. A first run warms up, and
counts for nothing. "-" is what there is no figure of, or what would be noise.

  CPU time      of the target for one unit of its work, as a multiple of untraced
  added         what that is more than untraced, for one unit
  of perf's     the same as a part of what `perf record -e kmem:rss_stat` adds in the same round
  of empty's    ... of what programs that do nothing add on memtrack's hooks. Both only where what is compared with is,
                in three rounds of four, more than what two untraced runs lie apart at the median, and than 1 %
  elapsed       elapsed time of the target, as a multiple of untraced; or
  rate          units of its work in a second of elapsed time, as a multiple of untraced

  recorder CPU  CPU time of the recorder from its start to its end, as a part of the target's
  memory        the most memory the recorder held in any round, apart from its ring buffer
  disk, event   bytes written, and for an event
  lost          in the round that lost most; and as a part of all, the median

  tree's peak   error of the most memory that the tree held, against the target's own account of it. The fork storm's
                leaves out the stack that posix_spawn lends a child, two pages that may live on for a moment
  processes     error of peak and last figure, of each kind of memory, of processes that read their own (and how many
                such figures there are)
  largest       the largest process's peak, less what the kernel says of it (ru_maxrss), which reads counters without
                what each CPU keeps to itself: that may be off by as much as is said in brackets
                Of all three, the round that is worst.
"""

Cell = Callable[[Row], str]


def text(workload: Workload, figures: Sequence[Row]) -> str:
    measured = [row for row in figures if "time" in row]
    untraced = next(row for row in figures if row["contender"] == UNTRACED.name)
    lines = textwrap.wrap(workload.name, WIDTH)
    if measured:
        scale = _scale(max(row["time_ns"]["median"] for row in measured))
        if untraced in measured:
            lines.append(_base(workload, untraced, scale))
        for columns, needed in (
            (_cost(workload, scale), False),
            (_RECORDER if workload.whole else [_RECORDER_CPU, *_RECORDER], True),
            (_TRUTH, True),
        ):
            lines += ["", *table(columns, measured, needed=needed)]
    notes = [note for row in figures for note in _notes(row, untraced)]
    return "\n".join([*lines, "", *notes]).rstrip() + "\n"


def table(columns: Sequence[tuple[str, Cell]], figures: Sequence[Row], *, needed: bool) -> list[str]:
    """Lines. With `needed`, who has nothing to show is left out."""
    rows = [[row["contender"], *(cell(row) for _, cell in columns)] for row in figures]
    if needed:
        rows = [cells for cells in rows if any(cell != "-" for cell in cells[1:])]
    if not rows:
        return []
    rows.insert(0, ["", *(heading for heading, _ in columns)])
    widths = [max(len(cells[column]) for cells in rows) for column in range(len(rows[0]))]
    return ["  ".join([cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])]).rstrip() for cells in rows]


def _base(workload: Workload, untraced: Row, scale: tuple[float, str]) -> str:
    of = "elapsed" if workload.whole else "CPU time"
    line = f"untraced: {_time(untraced['time_ns'], scale)} of {of} a {workload.unit}, {untraced['rounds']} rounds"
    if workload.rate:
        wall = untraced["wall_ns"]
        line += f"; {1e9 / wall['median']:.0f} ({1e9 / wall['high']:.0f}..{1e9 / wall['low']:.0f}) a second"
    return line


def _cost(workload: Workload, scale: tuple[float, str]) -> list[tuple[str, Cell]]:
    elapsed = "rate" if workload.rate else "elapsed"
    columns: list[tuple[str, Cell]] = [
        (elapsed if workload.whole else "CPU time", lambda row: ratio(row["time"])),
        ("added", lambda row: _added(row.get("added_ns"), scale)),
        ("of perf's", lambda row: ratio(row.get("of_perf"))),
    ]
    if not workload.whole:  # there it would be the same once more, and nothing that empty programs add
        columns.append(("of empty's", lambda row: ratio(row.get("of_empty"))))
        columns.append((elapsed, lambda row: ratio(row[elapsed])))
    return columns


_RECORDER_CPU: tuple[str, Cell] = ("recorder CPU", lambda row: ratio(row.get("recorder_cpu")))
_RECORDER: list[tuple[str, Cell]] = [
    ("memory", lambda row: _size(row.get("memory_bytes"))),
    ("disk", lambda row: _size(row.get("disk_bytes"))),
    ("event", lambda row: _number(row.get("bytes_per_event"), "{:.2f} B")),
    ("events", lambda row: _number(row.get("events"), "{:,.0f}")),
    ("lost", lambda row: _number(row.get("lost"), "{:,}")),
    ("lost", lambda row: _number((row.get("lost_share") or {}).get("median"), "{:.1%}")),
]

_TRUTH: list[tuple[str, Cell]] = [
    ("tree's peak", lambda row: _number(row.get("peak_error"), "{:+.3%}")),
    ("processes", lambda row: _number(row.get("figures_off_bytes"), f"{{:+,}} B ({row.get('figures')} figures)")),
    ("largest", lambda row: _largest(row.get("largest_off_bytes"))),
]


def _notes(row: Row, untraced: Row) -> list[str]:
    notes = []
    if row["absent"]:
        notes.append(row["absent"])
    if of_default := row.get("of_default"):
        notes.append(f"the target's CPU time is {ratio(of_default)} of that under memtrack in the same round")
    if odd := [status for status in row.get("statuses", []) if status not in untraced.get("statuses", [])]:
        notes.append(f"ended with status {', '.join(map(str, odd))}")
    return [
        line
        for note in notes
        for line in textwrap.wrap(f"{row['contender']}: {note}", WIDTH, initial_indent="  ", subsequent_indent="    ")
    ]


def ratio(spread: dict[str, float] | None) -> str:
    if spread is None:
        return "-"
    median, low, high = spread["median"], spread["low"], spread["high"]
    digits = 2 if max(high, -low) < _LARGE else 1
    return f"{median:.{digits}f} ({low:.{digits}f}..{high:.{digits}f})"


def _scale(nanoseconds: float) -> tuple[float, str]:
    return (1.0, "ns") if nanoseconds < 1e4 else (1e3, "us") if nanoseconds < 1e7 else (1e6, "ms")


def _time(spread: dict[str, float], scale: tuple[float, str]) -> str:
    by, unit = scale
    digits = 0 if unit == "ns" else 1
    median, low, high = (f"{spread[name] / by:.{digits}f}" for name in ("median", "low", "high"))
    return f"{median} {unit} ({low}..{high})"


def _added(spread: dict[str, float] | None, scale: tuple[float, str]) -> str:
    by, unit = scale
    return "-" if spread is None else f"{spread['median'] / by:.{0 if unit == 'ns' else 1}f} {unit}"


def _size(size_bytes: float | None) -> str:
    if not size_bytes:
        return "-"
    return f"{size_bytes / 1024:.1f} KiB" if size_bytes < 1 << 20 else f"{size_bytes / (1 << 20):.1f} MiB"


def _largest(off_bytes: int | None) -> str:
    if off_bytes is None:
        return "-"
    return f"{off_bytes / 1024:+,.0f} KiB ({truth.largest_bound_bytes() / 1024:,.0f})"


def _number(figure: Any, form: str) -> str:
    return "-" if figure is None else form.format(figure)
