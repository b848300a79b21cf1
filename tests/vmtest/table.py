"""The table of pages off: a column per kernel, a row per workload. Columns are measured one at a time, and kept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.vmtest.results import Case, Verdict, title

_CORNER = "workload"
# The row of releases, so that what was measured on which is known when a column is older than the next.
_RELEASE = "(release)"


@dataclass(frozen=True)
class Column:
    """One kernel's: cells by workload. An empty release is one that is not known."""

    release: str = ""
    cells: Mapping[str, str] = field(default_factory=dict)


def cell(case: Case) -> str:
    """Pages off in the rss layer and in the rmap layer, as `rss / rmap`; a bound that is not 0 stands behind.

    `-` is a layer that this kernel does not have.
    """
    if case.outcome != "passed":
        return case.outcome
    bound, lost = case.properties.get("bound_rss", "0"), case.properties.get("lost_events", "0")
    rss = case.properties.get("pages_off_rss", "-") + (f" (≤ {bound})" if bound != "0" else "")
    return f"{rss} / {case.properties.get('pages_off_rmap', '-')}" + (f", {lost} lost" if lost != "0" else "")


def of_verdict(verdict: Verdict) -> Column:
    workloads = (case for case in verdict.cases if "::test_workload[" in case.name)
    release = re.sub(r"(-cloud|-rt)?-(amd64|arm64)(-16k)?$", "", verdict.release)
    return Column(release, {title(case.name): cell(case) for case in workloads})


def markdown(columns: Mapping[str, Column]) -> str:
    """By the kernels' names, in their order; a cell is empty where a workload was not run."""
    workloads = sorted({workload for column in columns.values() for workload in column.cells})
    lines = [_row([_CORNER, *columns]), _row(["---"] * (len(columns) + 1))]
    lines.append(_row([_RELEASE, *(column.release for column in columns.values())]))
    lines += [_row([name, *(column.cells.get(name, "") for column in columns.values())]) for name in workloads]
    return "\n".join(lines) + "\n"


def parse(text: str) -> dict[str, Column]:
    """What markdown() has written."""
    titles, _, releases, *rows = [re.split(r" ?\| ?", line)[1:-1] for line in text.strip().splitlines()]
    return {
        kernel: Column(releases[number], {cells[0]: cells[number] for cells in rows if cells[number]})
        for number, kernel in enumerate(titles)
        if number
    }


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
