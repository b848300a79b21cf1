"""How 6.6 and 6.7 are hooked, on a kernel before them that has half of what they have.

There page_add_file_rmap works through folio_add_file_rmap_range, by a call or by a copy of it (bpf/rmap.bpf.h). With
the programs for that on 6.1, which has the former alone, every page comes as it does from a copy: the mark of a task
that is inside must not hide a page, nor outlive the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from memtrack import Tracker, hooks
from memtrack.features import KernelFacts
from memtrack.hooks import Plan
from tests.bpf import harness
from tests.bpf.replay import RMAP
from tests.bpf.rows import ROWS

pytestmark = [pytest.mark.bpf, pytest.mark.core]

WRAPPER, EXIT = "page_add_file_rmap", "page_add_file_rmap_exit"


@pytest.fixture(scope="session")
def workloads() -> Path:
    return harness.build()


@pytest.mark.parametrize("name", ["file_mapping private", "shared_memory anon", "file_truncated punch"])
def test_every_page_counts_once(name: str, workloads: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Tracker(rmap=True) as tracker:
        hooked = tracker.plan.programs  # of what the kernel declares, what it takes
    tracker.recording.close()
    if WRAPPER not in hooked:
        pytest.skip(f"{WRAPPER} is not hooked on this kernel")
    choose = hooks.choose

    def wrapped(facts: KernelFacts, rmap: bool, refused: Mapping[str, str] = {}) -> Plan:
        plan = choose(facts, rmap, refused)
        return replace(plan, programs=plan.programs | {EXIT}) if plan.rmap.tier else plan

    monkeypatch.setattr(hooks, "choose", wrapped)
    (row,) = (row for row in ROWS if row.name == name)
    outcome = harness.run(row, workloads, rmap=True)
    assert not outcome.problems, "\n".join(outcome.problems)
    assert outcome.pages_off(RMAP) == 0
