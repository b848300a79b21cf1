"""Real programs: every process of theirs accounted for, and exact up to its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bpf import harness
from tests.bpf.real_programs import PROGRAMS
from tests.bpf.replay import RMAP, RSS
from tests.bpf.rows import Row


@pytest.fixture(scope="session")
def workloads() -> Path:
    return harness.build()


@pytest.mark.bpf
@pytest.mark.parametrize("row", PROGRAMS, ids=lambda row: row.name)
def test_real_program(row: Row, workloads: Path, record_property: Callable[[str, object], None]) -> None:
    outcome = harness.run(row, workloads, rmap=True)
    if outcome.skipped is not None:
        pytest.skip(outcome.skipped)
    for layer in (RSS, RMAP):
        if (pages_off := outcome.pages_off(layer)) is not None:
            record_property(f"pages_off_{layer}", pages_off)
    assert not outcome.problems, "\n".join(outcome.problems)
