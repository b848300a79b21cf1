"""Which changes a recording at some resolution has a record of: those that it says, and no others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from memtrack import Tracker
from memtrack.events import Event, EventType, Figure
from memtrack.recording import Recording
from tests.bpf import beside, harness

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("totals")]

MS = 1_000_000

# Of a process and a member: the figures that records have, in order.
Told = dict[tuple[int, int], list[int]]


@pytest.fixture(scope="session")
def workloads() -> Path:
    return harness.build()


def recorded(workloads: Path, resolution: str) -> tuple[Recording, Recording]:
    """Every change and those of the resolution, of one run; each process has one thread, so there is one order."""
    with Tracker() as every, Tracker(resolution=resolution) as some:
        beside.run([every, some], [workloads / "copies"])
    assert every.recording.lost_events == some.recording.lost_events == 0
    assert some.recording.complete, some.recording.problems
    return every.recording, some.recording


def told(changes: Iterable[Figure]) -> Told:
    found: Told = {}
    for change in changes:
        found.setdefault((change.pid, change.member), []).append(change.size_bytes)
    return found


def changes(events: Iterable[Event]) -> Iterator[Figure]:
    return (event for event in events if isinstance(event, Figure) and event.type is EventType.RSS)


def that_far(events: Iterable[Event], step_bytes: int) -> Iterator[Figure]:
    """Of every change those that are so far from the last that was told, be it by SYNC."""
    last: dict[tuple[int, int], int] = {}
    for event in events:
        if not isinstance(event, Figure):
            continue
        key = event.pid, event.member
        if event.type is EventType.SYNC:
            last[key] = event.size_bytes
        elif abs(event.size_bytes - last[key]) >= step_bytes:
            last[key] = event.size_bytes
            yield event


# No change is smaller than a page.
@pytest.mark.parametrize(
    ("resolution", "step_bytes"),
    [("1", 1), ("4KiB", 4 << 10), ("64KiB", 64 << 10), ("1000000", 1_000_000), ("1MiB", 1 << 20), ("1GiB", 1 << 30)],
)
def test_of_a_size_it_has_the_changes_that_are_that_far_apart(
    resolution: str, step_bytes: int, workloads: Path
) -> None:
    every, some = recorded(workloads, resolution)
    with every, some:
        assert some.header["detail"] == {"events": True, "resolution_bytes": step_bytes, "resolution_ns": None}
        assert told(changes(some.events())) == told(that_far(every.events(), step_bytes))
        # 50 MiB are written page by page, of which a record of so many is one.
        pages = -(-step_bytes // some.page_size)
        written = (50 << 20) // some.page_size
        assert every.event_counts["RSS"] - some.event_counts.get("RSS", 0) >= written - -(-written // pages)


def test_of_a_time_it_has_changes_that_are_so_long_apart(workloads: Path) -> None:
    every, some = recorded(workloads, "1ms")
    with every, some:
        assert some.header["detail"] == {"events": True, "resolution_bytes": None, "resolution_ns": MS}
        last: dict[tuple[int, int], int] = {}
        for event in some.events():
            if event.type is EventType.EXEC:  # a new address space, whose first change is told
                last = {key: at_ns for key, at_ns in last.items() if key[0] != event.pid}
            elif isinstance(event, Figure) and event.type is EventType.RSS:
                key = event.pid, event.member
                assert event.time_ns - last.get(key, 0) >= MS
                last[key] = event.time_ns
        of_all, of_some = told(changes(every.events())), told(changes(some.events()))
        assert of_some.keys() == of_all.keys()
        assert 2 * sum(map(len, of_some.values())) < sum(map(len, of_all.values()))


def test_of_the_shortest_time_it_has_every_change(workloads: Path) -> None:
    every, some = recorded(workloads, "1ns")
    with every, some:
        assert some.header["detail"] == {"events": True, "resolution_bytes": None, "resolution_ns": 1}
        assert told(changes(some.events())) == told(changes(every.events()))
