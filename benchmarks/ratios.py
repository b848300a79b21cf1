"""Ratios of runs that stood side by side in one round, and how far apart they were."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Two runs with a hundredth between them may as well have none.
_LEAST = 0.01


@dataclass(frozen=True)
class Spread:
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: Iterable[float]) -> Spread | None:
        known = list(figures)
        return cls(statistics.median(known), min(known), max(known)) if known else None


def ratios(figures: Sequence[float], bases: Sequence[float]) -> Spread | None:
    return Spread.of(figure / base for figure, base in zip(figures, bases, strict=False) if base > 0)


def added(figures: Sequence[float], bases: Sequence[float]) -> list[float]:
    return [figure - base for figure, base in zip(figures, bases, strict=False)]


def visible(costs: Sequence[float], bases: Sequence[float], noise: Sequence[float]) -> bool:
    """Whether `costs` can be compared with: in three rounds of four they are more than what two equal runs of a round,
    whose mean is the base, lie apart at the median (`noise`), and more than a small part of the base."""
    if not costs or not bases:
        return False
    cost = sorted(costs)[len(costs) // 4]
    return cost > statistics.median(noise or [0.0]) and cost > _LEAST * statistics.median(bases)
