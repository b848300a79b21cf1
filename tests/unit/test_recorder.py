"""What a recorder says of its own work, from what the programs counted."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from memtrack.loader import Tally
from memtrack.recorder import _doubts, _shortcomings

COUNTED = Tally(**dict.fromkeys(Tally.__dataclass_fields__, 0))


def test_nothing_is_said_of_nothing() -> None:
    assert _shortcomings(COUNTED, 8) == []
    assert _doubts(COUNTED, 2) == []


def test_what_there_was_no_room_for_is_one_sentence() -> None:
    (said,) = _shortcomings(replace(COUNTED, processes_full=3, spaces_full=2), 8)
    assert said.startswith("5 times there was no room for a process")
    assert "8 at one time" in said


def test_a_tree_adopted_in_part_is_said() -> None:
    (said,) = _shortcomings(COUNTED, 8, adopted_in_part=True)
    assert "no room for all processes of a tree that was adopted: 8 at one time" in said


@pytest.mark.parametrize(("cpus", "batch"), [(1, 32), (16, 32), (64, 128)])
def test_sums_that_did_not_settle_are_no_shortcoming(cpus: int, batch: int) -> None:
    tally = replace(COUNTED, sums_unsettled=7)
    assert _shortcomings(tally, 8) == []
    (said,) = _doubts(tally, cpus)
    assert said.startswith("7 times ")
    assert f"rss layer's figure at that instant, and so a peak, may be off by up to {batch} pages" in said


def test_what_the_rmap_layer_started_from_may_be_off_by_page_tables() -> None:
    table = os.sysconf("SC_PAGESIZE") // 8
    tally = replace(COUNTED, bases_unsettled=7)
    assert _doubts(tally, 2) == []
    (said,) = _shortcomings(tally, 8)
    assert said.startswith("7 times the rmap layer started")
    assert f"up to {table} pages for each thread" in said
