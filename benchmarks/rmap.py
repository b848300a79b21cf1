"""What the rmap layer adds to a page, of what the rss layer alone adds: ``python -m benchmarks.rmap``, as root, where
the kernel takes fentry programs. It needs no compiler, so that it runs in a guest of tests.vmtest too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import memtrack
from benchmarks import machine, programs, touch
from benchmarks.ratios import Spread, added, ratios

RESULTS = programs.BUILD / "rmap.json"

UNTRACED, AGAIN = "untraced", "untraced, again"
RESOLUTIONS = {"every change": None, "64KiB": "64KiB"}
"""What the rss layer writes, by the name that it has here. The rmap layer writes every change."""
LIFE = "both"

_LEAST_NS = 10.0
"""A layer that adds less was called for one page in dozens, and a ratio to that says nothing about either layer."""

LEGEND = """\
CPU time of the target, in nanoseconds for a page: the median over the rounds, with the lowest and the highest in
brackets. What is compared stood in the same round. Noise is what a second untraced run takes more than the first. There
is a ratio where the rss layer adds more than twice that, and {least:.0f} ns, in every round. In a guest that counts
instructions each is a nanosecond.
"""

Run = Mapping[tuple[str, str], float]
"""Nanoseconds for a page, by kind and by what is done with it."""


class Row(NamedTuple):
    """Spreads over the rounds, in nanoseconds for a page."""

    kind: str
    done: str
    records: str
    untraced: Spread
    noise: Spread
    rss: Spread
    """What the rss layer adds to untraced."""
    rmap: Spread
    """What the rmap layer adds to that."""
    ratio: Spread | None
    """The latter, of the former."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rmap", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="3, if this does not say it")
    rounds = parser.parse_args().rounds
    if os.geteuid() != 0:
        parser.error("the recorder needs root here")
    if reason := _refused():
        print(f"rmap: there is nothing to measure: the rmap layer is off: {reason}", file=sys.stderr)
        return 1
    facts = machine.facts()
    print(machine.text(facts), LEGEND.format(least=_LEAST_NS), sep="\n", flush=True)
    # With the target, which goes before it: see touch.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    runs: dict[str, list[Run]] = {}
    for number in range(rounds):
        names = [UNTRACED, *_recorded(), AGAIN]
        for name in names if number % 2 == 0 else reversed(names):
            if (run := _run(name)) is not None:
                runs.setdefault(name, []).append(run)
    rows = list(table(runs))
    print(text(rows))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": facts, "rows": [row._asdict() for row in rows]}, default=vars, indent=1))
    return 0


def _refused() -> str | None:
    with memtrack.Tracker(rmap=True) as tracker:
        return tracker.plan.rmap.reason


def _recorded() -> dict[str, tuple[str | None, bool]]:
    """Resolution and whether with the rmap layer, by a name for both."""
    return {
        _name(records, rmap): (resolution, rmap)
        for records, resolution in RESOLUTIONS.items()
        for rmap in (False, True)
    }


def _name(records: str, rmap: bool) -> str:
    return f"{records}, with rmap" if rmap else records


def _run(name: str) -> Run | None:
    """None where the kernel cannot record so."""
    command = [sys.executable, "-m", "benchmarks.touch", str(max(os.sched_getaffinity(0)))]
    with tempfile.TemporaryFile("w+") as printed:
        if name in (UNTRACED, AGAIN):
            subprocess.run(command, check=True, stdout=printed, cwd=programs.ROOT)
        else:
            resolution, rmap = _recorded()[name]
            try:
                with memtrack.record(
                    command, rmap=rmap, resolution=resolution, stdout=printed, cwd=programs.ROOT
                ) as recording:
                    lost = recording.lost_events
            except memtrack.FeatureError:
                return None
            if lost:
                raise RuntimeError(f"{lost} events were lost: to count one costs less than to write it")
        printed.seek(0)
        return by_page(json.load(printed))


def by_page(printed: Mapping[str, touch.Figures | None]) -> dict[tuple[str, str], float]:
    """One figure for each: of all repetitions but the first, which finds cold caches."""
    run = {}
    for kind, figures in printed.items():
        if figures is None:
            continue
        for done in (touch.TOUCH, touch.GIVE_BACK):
            run[kind, done] = statistics.median(figures[done][1:])
        run[kind, LIFE] = statistics.median(map(sum, zip(*(each[1:] for each in figures.values()), strict=True)))
    return run


def table(runs: Mapping[str, Sequence[Run]]) -> Iterator[Row]:
    """A row for each kind, what is done with it, and the records that are written."""
    kinds = [key for key in runs[UNTRACED][0] if all(key in run for series in runs.values() for run in series)]
    for records in RESOLUTIONS:
        alone, with_rmap = runs.get(_name(records, False)), runs.get(_name(records, True))
        if not alone or not with_rmap:
            continue
        for key in kinds:
            first, again = ([run[key] for run in runs[name]] for name in (UNTRACED, AGAIN))
            base = [statistics.mean(both) for both in zip(first, again, strict=True)]
            rss = added([run[key] for run in alone], base)
            rmap = added([run[key] for run in with_rmap], [run[key] for run in alone])
            noise = added(again, first)
            visible = min(rss) > max(_LEAST_NS, 2 * max(map(abs, noise)))
            spreads = [Spread.of(figures) for figures in (base, noise, rss, rmap)]
            untraced_ns, noise_ns, rss_ns, rmap_ns = (spread for spread in spreads if spread is not None)
            ratio = ratios(rmap, rss) if visible else None
            yield Row(*key, records, untraced_ns, noise_ns, rss_ns, rmap_ns, ratio)


def text(rows: Sequence[Row]) -> str:
    lines = [["page", "what is done", "rss records", "untraced", "noise", "rss adds", "rmap adds", "ratio"]]
    for row in rows:
        spreads = [_spread(spread, 0) for spread in (row.untraced, row.noise, row.rss, row.rmap)]
        lines.append([row.kind, row.done, row.records, *spreads, _spread(row.ratio, 2) if row.ratio else ""])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join([*map(str.ljust, line[:3], widths[:3]), *map(str.rjust, line[3:], widths[3:])]).rstrip()
        for line in lines
    )


def _spread(spread: Spread, digits: int) -> str:
    return f"{spread.median:.{digits}f} ({spread.low:.{digits}f}..{spread.high:.{digits}f})"


if __name__ == "__main__":
    sys.exit(main())
