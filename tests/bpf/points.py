"""What workloads report while they run: quiet points, notes, and why one cannot be shown here."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# Points so named were taken before anyone recorded.
UNWATCHED = "unwatched"


@dataclass(frozen=True)
class Point:
    """One process at rest, from the page tables; figures in pages. Nothing changed between `from_ns` and `ns`."""

    name: str
    pid: int
    own_pid: int
    page_bytes: int
    file: int
    anon: int
    swap: int
    shmem: int
    threads: int
    """Those that use its memory, whichever process they belong to."""
    from_ns: int
    ns: int
    source: str
    """"pagemap", checked by smaps, or "smaps" alone, where the workload had no right to look at page frames."""
    counters: dict[str, int]
    """The same as /proc/PID/status had it; exact on some kernels only."""

    @property
    def rss(self) -> int:
        return self.file + self.anon + self.shmem

    def figure(self, member: str) -> int:
        return int(getattr(self, member))


@dataclass(frozen=True)
class Note:
    name: str
    pid: int
    address: int
    pages: int
    ns: int


@dataclass(frozen=True)
class Report:
    """All that one run of a workload reported."""

    points: tuple[Point, ...]
    notes: tuple[Note, ...]
    skipped: str | None

    def note(self, name: str) -> Note:
        (found,) = (note for note in self.notes if note.name == name)
        return found

    def named(self, name: str) -> list[Point]:
        return [point for point in self.points if point.name == name]

    @property
    def watched(self) -> list[Point]:
        return [point for point in self.points if not point.name.startswith(UNWATCHED)]


def read(path: Path) -> Report:
    return parse(path.read_text().splitlines())


def parse(lines: Iterable[str]) -> Report:
    points: list[Point] = []
    notes: list[Note] = []
    skipped = None
    for line in lines:
        entry = json.loads(line)
        if "skip" in entry:
            skipped = entry["skip"]
        elif "note" in entry:
            notes.append(Note(entry["note"], entry["pid"], entry["address"], entry["pages"], entry["ns"]))
        else:
            counters = {member: entry["counters"][member] for member in ("file", "anon", "swap", "shmem")}
            points.append(
                Point(
                    name=entry["point"],
                    pid=entry["pid"],
                    own_pid=entry["own_pid"],
                    page_bytes=entry["page_size"],
                    **{member: entry[member] for member in counters},
                    threads=entry["threads"],
                    from_ns=entry["from_ns"],
                    ns=entry["ns"],
                    source=entry["source"],
                    counters=counters,
                )
            )
    return Report(tuple(points), tuple(notes), skipped)
