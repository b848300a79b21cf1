"""Programs that stand in for those that the kernel skips: they do the same, and nothing is done twice.

This kernel may be one that skips none: then it is told to load them all the same.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from memtrack._native import lib

from memtrack import features, hooks
from memtrack.events import EventType
from memtrack.facts import KernelFacts
from tests.bpf import beside, harness
from tests.bpf.counting import Counting

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("totals")]

RING_BYTES = 32 << 20
LIFE_CYCLE = (EventType.FORK, EventType.EXEC, EventType.EXIT)


@pytest.fixture(scope="session")
def workloads() -> Path:
    return harness.build()


def preemptible() -> KernelFacts:
    facts = features.probe()
    return replace(facts, members={**facts.members, hooks.PREEMPTIBLE_TRACEPOINTS: "unsigned long"})


@pytest.mark.parametrize("first", ["attached", "gone"])
def test_they_do_the_same_and_nothing_twice(first: str, workloads: Path) -> None:
    """`gone`: nothing but stand-ins is left, as if the kernel skipped every other program each time."""
    plain, again = Counting(RING_BYTES), Counting(RING_BYTES, preemptible())
    try:
        standins = {name for each in hooks.STANDINS.values() for name in each}
        # Of sched_prepare_exec, which is younger than the kernels that have totals, there may be none.
        missing = standins - again.probes.plan.programs
        assert not {name for name in missing if not name.startswith(hooks.EXEC_CHARGES)}
        if first == "gone":
            for program in hooks.LIFECYCLE_LOSSES:
                assert lib.probes__detach(again.probes._probes, program.encode()) == 0
        command = [workloads / "storm", 4, 50, "exec"]
        with beside.spawned([plain.probes, again.probes], command) as process:
            assert process.wait(300) == 0
        assert again.probes.tree().pages == (0, 0, 0, 0)
    finally:
        plain.close()
        again.close()
    assert {kind: again.counts[kind] for kind in LIFE_CYCLE} == {kind: plain.counts[kind] for kind in LIFE_CYCLE}
    assert plain.counts[EventType.EXIT] == 4 * 50 + 4 + 1
    assert again.tally.members == again.tally.left_out == again.tally.execs_missed == 0


def test_the_arguments_of_an_exec_are_in_the_peak() -> None:
    """The kernel charges them to the address space that exec leaves, which is never larger than then."""
    facts = preemptible()
    if hooks.EXEC_CHARGES not in facts.tracepoints:
        pytest.skip("before Linux 6.10 exec has no such tracepoint, nor can it be preempted there")
    plain, again = Counting(RING_BYTES), Counting(RING_BYTES, facts)
    try:
        # Fifteen arguments of 100,000 bytes; the kernel takes none of more than 128 KiB.
        script = (
            'a=$(printf %0100000d 0); set --; i=0; while [ $i -lt 15 ]; do set -- "$@" $a; i=$((i+1)); done;'
            ' exec true "$@"'
        )
        with beside.spawned([plain.probes, again.probes], ["sh", "-c", script]) as process:
            assert process.wait(60) == 0
        assert again.probes.tree().peak_pages == plain.probes.tree().peak_pages
    finally:
        plain.close()
        again.close()
