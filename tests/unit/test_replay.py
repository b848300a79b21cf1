"""The comparison of recordings with the oracle: it must see a page that is missing, and a point that was none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memtrack.events import Event, EventType, Exec, Figure, Fork, Member, Rmap, encode
from memtrack.writer import Writer
from tests.bpf import replay
from tests.bpf.points import Point, parse
from tests.bpf.replay import RMAP, RSS, bound_pages

PAGE = 4096
PID = 7

HEADER: dict[str, Any] = {
    "page_size": PAGE,
    "command": ["x"],
    "sources": {
        "rss": {"tier": None, "hook": "x", "reason": None},
        "rmap": {"tier": "folio", "hooks": ["x"], "reason": None},
        "lifecycle": {"hooks": ["x"], "reason": None},
    },
}


def point(anon: int, *, ns: int = 100, pid: int = PID, page_bytes: int = PAGE, threads: int = 1) -> Point:
    return Point(
        name="p",
        pid=pid,
        own_pid=pid,
        page_bytes=page_bytes,
        file=3,
        anon=anon,
        swap=0,
        shmem=0,
        threads=threads,
        from_ns=ns - 10,
        ns=ns,
        source="pagemap",
        counters={},
    )


def recording(folder: Path, *later: Event) -> Path:
    """A process that begins with 3 file and 10 anon pages, and then what is given."""
    sizes = {Member.FILE: 3, Member.ANON: 10, Member.SWAP: 0, Member.SHMEM: 0}
    events: list[Event] = [
        Fork(EventType.FORK, 1, PID, 1, 1, 1),
        Exec(EventType.EXEC, 2, PID, PID, "x"),
        *(Figure(EventType.SYNC, 3, PID, PID, member, pages * PAGE) for member, pages in sizes.items()),
        *later,
    ]
    path = folder / "recording"
    with path.open("wb") as file:
        writer = Writer(file, HEADER)
        writer.write_frame(b"".join(encode(event) for event in events))
        writer.finish({})
    return path


def rss(now: int, pages: int) -> Figure:
    return Figure(EventType.RSS, now, PID, PID, Member.ANON, pages * PAGE)


def rmap(now: int, pages: int) -> Rmap:
    return Rmap(EventType.RMAP, now, PID, PID, Member.ANON, pages, 0x1000)


def off(path: Path, *points: Point) -> dict[tuple[str, str], int]:
    compared = replay.compare(path, points, cached=False)
    assert not compared.problems
    return {(d.layer, d.member): d.pages for d in compared.differences if d.pages}


def test_nothing_is_off(tmp_path: Path) -> None:
    assert off(recording(tmp_path, rss(50, 11), rmap(51, 1)), point(11)) == {}


def test_a_page_is_missed(tmp_path: Path) -> None:
    path = recording(tmp_path, rss(50, 11), rmap(51, 1))
    assert off(path, point(12)) == {(RSS, "anon"): -1, (RMAP, "anon"): -1}


def test_layers_are_compared_apart(tmp_path: Path) -> None:
    assert off(recording(tmp_path, rss(50, 12), rmap(51, 1)), point(12)) == {(RMAP, "anon"): -1}
    assert off(recording(tmp_path, rss(50, 11), rmap(51, 2)), point(12)) == {(RSS, "anon"): -1}


def test_what_comes_after_a_point_does_not_count(tmp_path: Path) -> None:
    path = recording(tmp_path, rss(50, 11), rmap(51, 1), rss(150, 99), rmap(151, 88))
    assert off(path, point(11), point(99, ns=200)) == {}


def test_an_event_during_a_point_is_a_problem(tmp_path: Path) -> None:
    path = recording(tmp_path, rss(95, 11), rmap(96, 1))
    assert "2 events while it was quiet" in replay.compare(path, [point(11)], cached=False).problems[0]


def test_a_process_that_was_not_followed_is_a_problem(tmp_path: Path) -> None:
    compared = replay.compare(recording(tmp_path), [point(11, pid=8)], cached=False)
    assert "8 is not in the recording" in compared.problems[0]


@pytest.mark.parametrize(
    ("member", "page_bytes", "threads", "wanted"),
    [("anon", 4096, 1, 66), ("anon", 4096, 3, 198), ("file", 4096, 1, 1056), ("shmem", 16384, 1, 264)],
)
def test_bound_where_threads_keep_changes_to_themselves(
    member: str, page_bytes: int, threads: int, wanted: int
) -> None:
    assert bound_pages(point(0, page_bytes=page_bytes, threads=threads), member, cached=True) == wanted
    assert bound_pages(point(0, page_bytes=page_bytes, threads=threads), member, cached=False) == 0


def test_report_of_a_workload() -> None:
    report = parse(
        [
            '{"point": "p", "pid": 7, "own_pid": 1, "page_size": 4096, "file": 3, "anon": 4, "swap": 5, "shmem": 6,'
            ' "hugetlb": 0, "zero": 0, "special": 0, "threads": 2,'
            ' "counters": {"unit": "pages", "file": 3, "anon": 4, "swap": 5, "shmem": 6},'
            ' "source": "pagemap", "from_ns": 8, "ns": 9}',
            '{"note": "n", "pid": 7, "address": 8192, "pages": 2, "ns": 10}',
            '{"skip": "why"}',
        ]
    )
    assert report.points[0].rss == 13
    assert report.note("n").address == 8192
    assert report.skipped == "why"
