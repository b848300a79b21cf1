"""Real programs: every process of theirs accounted for, and exact up to its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bpf import harness
from tests.bpf.real_programs import PROGRAMS
from tests.bpf.rows import Row


@pytest.fixture(scope="session")
def workloads() -> Path:
    return harness.build()


@pytest.mark.bpf
@pytest.mark.parametrize("row", PROGRAMS, ids=lambda row: row.name)
def test_real_program(row: Row, workloads: Path) -> None:
    outcome = harness.run(row, workloads, rmap=True)
    if outcome.skipped is not None:
        pytest.skip(outcome.skipped)
    assert not outcome.problems, "\n".join(outcome.problems)
