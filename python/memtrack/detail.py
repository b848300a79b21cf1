"""How much of what happens becomes records: every change, changes of some size, or none but totals."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from memtrack.errors import UsageError

_BYTES = {"": 1, "b": 1, "k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20, "g": 1 << 30, "gib": 1 << 30}
_NANOSECONDS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_QUANTITY = re.compile(r"\s*(\d{1,15})\s*([A-Za-z]*)\s*")

# A gibibyte or a day is beyond what anyone means, and far from overflowing anything.
_MAX_BYTES = 1 << 40
_MAX_NS = 86_400 * 1_000_000_000


@dataclass(frozen=True)
class Detail:
    """What is told. Peaks and last figures are exact whatever that is, for the kernel side keeps them."""

    events: bool = True
    """False: no record per change at all."""
    resolution_bytes: int | None = None
    """A record when a counter has moved by that much since its last one."""
    resolution_ns: int | None = None
    """A record when a counter moves and that much time has passed since its last one."""

    @property
    def every_event(self) -> bool:
        return self.events and self.resolution_bytes is None and self.resolution_ns is None

    @property
    def coarse(self) -> bool:
        return self.events and not self.every_event

    def header(self) -> dict[str, Any]:
        """As a recording's header has it."""
        return {
            "events": self.events,
            "resolution_bytes": self.resolution_bytes,
            "resolution_ns": self.resolution_ns,
        }


EVERY_EVENT = Detail()
TOTALS_ONLY = Detail(events=False)


def at_resolution(text: str) -> Detail:
    """From "64KiB" or "1ms". Raises UsageError for what is neither."""
    quantity = _QUANTITY.fullmatch(text)
    if quantity:
        number, unit = int(quantity[1]), quantity[2]
        size = number * _BYTES.get(unit.lower(), 0)
        if 0 < size <= _MAX_BYTES:
            return Detail(resolution_bytes=size)
        time_ns = number * _NANOSECONDS.get(unit, 0)
        if 0 < time_ns <= _MAX_NS:
            return Detail(resolution_ns=time_ns)
    raise UsageError(f"{text!r} is no resolution", "name a size or a time, as in 64KiB or 1ms")


def size_in_bytes(text: str) -> int:
    """From "1048576" or "1MiB". Raises UsageError for what is no size."""
    quantity = _QUANTITY.fullmatch(text)
    size = int(quantity[1]) * _BYTES.get(quantity[2].lower(), 0) if quantity else 0
    if not 0 < size <= _MAX_BYTES:
        raise UsageError(f"{text!r} is no size", "name one as in 65536, 64KiB or 16MiB")
    return size
