"""What is made of a stream of events: figures at one instant, peaks, processes; and how both reducers write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from memtrack.events import EventType

# What is shown fits 64 bits, as programs that read reports expect; no machine comes near.
_LARGEST: Final = (1 << 63) - 1

Figure: TypeAlias = int | None
Top: TypeAlias = tuple[int, Sequence[Figure], int | None]
"""When, the figures then by member, the processes that lived."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What is held at one instant. None: not observed. `rss_bytes` is file + anon + shmem of what was; never swap."""

    rss_bytes: int | None
    anon_bytes: int | None
    file_bytes: int | None
    shmem_bytes: int | None
    swap_bytes: int | None


@dataclass(frozen=True, slots=True)
class Peak(Figures):
    """The largest sum, its parts at that instant, when (CLOCK_MONOTONIC), and how many processes lived then."""

    at_ns: int | None
    processes: int | None


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the tree, from fork to exit; a pid that is used again is another one.

    Times are CLOCK_MONOTONIC, None where not observed: a process that was adopted has no start. `seen_ns` is its
    first event. `state` is "ended", "alive" (at the end of the recording), or "unknown": its end was lost, and it may
    have held more than the peak that is known. `peak.processes` is None. The rmap figures are None where there is no
    rmap layer.
    """

    pid: int
    ppid: int | None
    comm: str
    seen_ns: int
    start_ns: int | None
    exec_ns: int | None
    end_ns: int | None
    exit_code: int | None
    signal: int | None
    state: str
    peak: Peak
    last: Figures
    rmap_peak: Peak | None
    rmap_last: Figures | None


@dataclass(frozen=True, slots=True)
class Result:
    """What a whole stream of events comes to. `processes` are in the order of their first event."""

    peak: Peak
    rmap_peak: Peak | None
    processes: list[Process]
    processes_left: int
    lost_events: int
    events: dict[str, int]
    first_ns: int | None
    last_ns: int | None


_NOTHING: Final = Figures(None, None, None, None, None)
_NO_PEAK: Final = Peak(None, None, None, None, None, None, None)


def saturated(size_bytes: int) -> int:
    """The nearest number that a signed 64-bit integer holds."""
    if -_LARGEST <= size_bytes <= _LARGEST:
        return size_bytes
    return _LARGEST if size_bytes > 0 else -_LARGEST - 1


def figures_of(values: Sequence[Figure] | None, *, swap: bool = True) -> Figures:
    """Of figures by member, each within 64 bits; None: none was observed."""
    if values is None:
        return _NOTHING
    file, anon, swapped, shmem = values
    if file is not None and anon is not None and shmem is not None:
        total: Figure = saturated(file + anon + shmem)
    else:
        parts = [part for part in (file, anon, shmem) if part is not None]
        total = saturated(sum(parts)) if parts else None
    return Figures(total, anon, file, shmem, swapped if swap else None)


def peak_of(top: Top | None, *, swap: bool = True) -> Peak:
    """Of the largest sum; None: there was none."""
    if top is None:
        return _NO_PEAK
    at_ns, values, processes = top
    held = figures_of(values, swap=swap)
    return Peak(held.rss_bytes, held.anon_bytes, held.file_bytes, held.shmem_bytes, held.swap_bytes, at_ns, processes)


def ending_of(wait_status: int | None) -> tuple[int | None, int | None]:
    """Exit code and signal, of which there is one at most."""
    if wait_status is None:
        return None, None
    signal = wait_status & 0x7F
    return (None, signal) if signal else (wait_status >> 8 & 0xFF, None)


def counts_of(counts: Sequence[int]) -> dict[str, int]:
    """Records by the name of their type; those that there were."""
    return {_name(kind): count for kind, count in enumerate(counts) if count}


def _name(kind: int) -> str:
    try:
        return EventType(kind).name
    except ValueError:
        return f"type {kind}"
