"""Whether the two memory layers agree: each is a check of the other, made by different functions of the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from memtrack.figures import Figures, Peak, Process

# How many page faults a thread keeps to itself before 6.2, and what one may bring: the fault-around window of the
# kernel, 64 KiB (fault_around_bytes in mm/memory.c), or a page where pages are larger. See docs/accuracy.md.
_FAULTS_KEPT: Final = 66
_FAULT_AROUND_BYTES: Final = 64 << 10
_ENTRY_BYTES: Final = 8

# Ways of the rss layer that do not lag (hooks.RSS_TIERS). Of any other, and of one that is not known, that is supposed.
_EXACT_TIERS: Final = ("percpu", "classic")


@dataclass(frozen=True, slots=True)
class Difference:
    """A figure that the two layers do not agree about. `pid` and `comm` are None for the whole tree."""

    pid: int | None
    comm: str | None
    figure: str
    """"peak" or "last"."""
    rss_bytes: int
    rmap_bytes: int

    @property
    def size_bytes(self) -> int:
        return abs(self.rss_bytes - self.rmap_bytes)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of comparing `peak` and `last` of each process, and the tree's peak."""

    bound_bytes: int
    """What one thread may be between the two layers by; the tree's peak is given so much for each process."""
    differences: Sequence[Difference]
    """Those above it, the largest first."""


def bound_bytes(page_bytes: int, rss_tier: str | None) -> int:
    """What the kernel keeps back: a thread changes up to a page table of pages in one layer before the other, and
    without exact counters it keeps the pages of some faults to itself for as long as it likes."""
    table_bytes = page_bytes // _ENTRY_BYTES * page_bytes
    kept_bytes = 0 if rss_tier in _EXACT_TIERS else _FAULTS_KEPT * max(page_bytes, _FAULT_AROUND_BYTES)
    return table_bytes + kept_bytes


def compare(bound: int, peak: Peak, rmap_peak: Peak | None, processes: Sequence[Process]) -> Comparison | None:
    """None where there are not two layers. What was not observed in both is not compared."""
    if rmap_peak is None or peak.rss_bytes is None:
        return None
    differences: list[Difference] = []
    _collect(differences, bound * max(1, peak.processes or 0), None, "peak", peak, rmap_peak)
    for process in processes:
        _collect(differences, bound, process, "peak", process.peak, process.rmap_peak)
        _collect(differences, bound, process, "last", process.last, process.rmap_last)
    return Comparison(bound, sorted(differences, key=lambda difference: -difference.size_bytes))


def _collect(
    differences: list[Difference],
    bound: int,
    process: Process | None,
    figure: str,
    rss: Figures,
    rmap: Figures | None,
) -> None:
    if rmap is None or rss.rss_bytes is None or rmap.rss_bytes is None:
        return
    pid, comm = (process.pid, process.comm) if process else (None, None)
    found = Difference(pid, comm, figure, rss.rss_bytes, rmap.rss_bytes)
    if found.size_bytes > bound:
        differences.append(found)
