"""What a recorder says of its own work, from what the programs counted."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from memtrack import losses
from memtrack.loader import MORE_PROCESSES, Tally
from memtrack.losses import doubts, shortcomings

COUNTED = Tally(**dict.fromkeys(Tally.__dataclass_fields__, 0))


def test_nothing_is_said_of_nothing() -> None:
    assert shortcomings(COUNTED, 8) == []
    assert doubts(COUNTED, 2) == []


def test_each_way_to_lose_is_counted_by_itself() -> None:
    """And all of them together are what is marked as lost."""
    counted = replace(COUNTED, lost_ring=1, lost_lifecycle=2, processes_full=4, spaces_full=8, sharers_full=16)
    ways = losses.counts(counted, 32)
    assert ways == {"ring": 1, "headroom": 2, "skipped": 32, "processes": 4, "spaces": 8, "sharers": 16}
    assert sum(ways.values()) == counted.lost_ring + counted.lost_lifecycle + counted.left_out + 32


@pytest.mark.parametrize(
    ("counted", "remedy"),
    [
        ({}, None),
        ({"ring": 1}, "ring"),
        ({"headroom": 1}, "ring"),
        ({"skipped": 1}, None),
        ({"spaces": 1, "ring": 1}, MORE_PROCESSES),
    ],
)
def test_the_remedy_is_for_what_was_lost(counted: dict[str, int], remedy: str | None) -> None:
    said = losses.remedy(counted)
    assert said is remedy is None or (remedy or "") in (said or "")


def test_what_there_was_no_room_for_is_one_sentence() -> None:
    (said,) = shortcomings(replace(COUNTED, processes_full=3, spaces_full=2), 8)
    assert said.startswith("5 times there was no room for a process")
    assert "8 at one time" in said


def test_a_tree_adopted_in_part_is_said() -> None:
    (said,) = shortcomings(COUNTED, 8, adopted_in_part=True)
    assert "no room for all processes of a tree that was adopted: 8 at one time" in said


@pytest.mark.parametrize(("cpus", "batch"), [(1, 32), (16, 32), (64, 128)])
def test_sums_that_did_not_settle_are_no_shortcoming(cpus: int, batch: int) -> None:
    tally = replace(COUNTED, sums_unsettled=7)
    assert shortcomings(tally, 8) == []
    (said,) = doubts(tally, cpus)
    assert said.startswith("7 times ")
    assert f"rss layer's figure at that instant, and so a peak, may be off by up to {batch} pages" in said


def test_what_the_rmap_layer_started_from_may_be_off_by_page_tables() -> None:
    table = os.sysconf("SC_PAGESIZE") // 8
    tally = replace(COUNTED, bases_unsettled=7)
    assert doubts(tally, 2) == []
    (said,) = shortcomings(tally, 8)
    assert said.startswith("7 times the rmap layer started")
    assert f"up to {table} pages for each thread" in said
