"""Ratios of runs that stood side by side in one round, and how far apart they were."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


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
