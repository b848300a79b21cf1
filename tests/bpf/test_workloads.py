"""Every workload, recorded, against its own oracle."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bpf import harness
from tests.bpf.replay import RMAP, RSS
from tests.bpf.rows import CORE, ROWS, Row


@pytest.fixture(scope="session")
def workloads() -> Path:
    return harness.build()


def marks(row: Row) -> tuple[pytest.MarkDecorator, ...]:
    return (pytest.mark.core,) if row.name in CORE else ()


@pytest.mark.bpf
@pytest.mark.parametrize("row", [pytest.param(row, marks=marks(row)) for row in ROWS], ids=lambda row: row.name)
def test_workload(row: Row, workloads: Path, record_property: Callable[[str, object], None]) -> None:
    """The rmap layer too, where the kernel has it: what it must have there, the kernel matrix says."""
    outcome = harness.run(row, workloads, rmap=True)
    if outcome.skipped is not None:
        pytest.skip(outcome.skipped)
    if (wanted := os.environ.get("VMTEST_RMAP")) is not None:
        assert (outcome.rmap_reason is None) == (wanted != "off"), outcome.rmap_reason
    # The kernel matrix makes its table of these.
    for layer in (RSS, RMAP):
        if (pages_off := outcome.pages_off(layer)) is not None:
            record_property(f"pages_off_{layer}", pages_off)
    record_property("bound_rss", outcome.bound(RSS))
    if outcome.lost_events:  # with PREEMPT_RT: then peaks and all that checks.py looks at were left out
        record_property("lost_events", outcome.lost_events)
    assert not outcome.problems, "\n".join(outcome.problems)
