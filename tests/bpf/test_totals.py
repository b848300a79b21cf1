"""The figures that the kernel side keeps: the same as those of the events, and nothing of whoever has ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from memtrack import Tracker, features, loader
from memtrack.detail import TOTALS_ONLY
from memtrack.loader import Probes
from memtrack.recording import Recording
from tests.bpf import beside, harness

pytestmark = [pytest.mark.bpf, pytest.mark.usefixtures("totals")]


@pytest.fixture(scope="session")
def workloads() -> Path:
    return harness.build()


@pytest.fixture
def probes() -> Iterator[Probes]:
    loaded = loader.load(features.probe(), rmap=False, ring_bytes=1 << 20, detail=TOTALS_ONLY)
    yield loaded
    loaded.close()


def await_end(probes: Probes) -> None:
    deadline = time.monotonic() + 10
    while probes.tally().members and time.monotonic() < deadline:
        time.sleep(0.005)
    assert probes.tally().members == 0


# --- against the events ---------------------------------------------------------------------------------------------

# What happens in these happens in one order, which every recorder sees.
IN_ORDER = (
    ("touch_anon",),
    ("shared_memory", "memfd"),
    ("file_mapping", "private"),
    ("exec_image", "place"),
    ("exec_image", "arguments"),
    ("commands_in_turn",),
    ("spawner", "vfork"),
    ("shared_mm", "first leaves"),
    ("copies",),
    ("fork_child",),
)


@pytest.mark.usefixtures("loses_nothing")
@pytest.mark.parametrize("command", IN_ORDER, ids=" ".join)
def test_totals_are_those_of_the_events(command: tuple[str, ...], workloads: Path) -> None:
    with Tracker() as events, Tracker(events=False) as totals:
        beside.run([events, totals], [workloads / command[0], *command[1:]])
    with events.recording as one, totals.recording as other:
        assert one.lost_events == other.lost_events == 0
        assert figures(other) == figures(one)


@pytest.mark.parametrize("resolution", ["1ns", "100ms", "4KiB", "1MiB", "1GiB"])
def test_peaks_are_exact_at_any_resolution(resolution: str, workloads: Path) -> None:
    """Sums of the records would be of figures of different age: what one child has given back counts in them."""
    with Tracker() as events, Tracker(resolution=resolution) as samples:
        beside.run([events, samples], [workloads / "copies"])
    with events.recording as one, samples.recording as other:
        assert figures(other) == figures(one)


def figures(recording: Recording) -> dict[str, object]:
    """Without times and numbers of processes: who was first of two CPUs is the recorder's view."""
    top = recording.peak
    return {
        "peak": (top.rss_bytes, top.anon_bytes, top.file_bytes, top.shmem_bytes),
        **{
            f"{process.comm} {process.pid}": (
                process.peak.rss_bytes,
                process.peak.anon_bytes,
                process.last.rss_bytes,
                process.last.anon_bytes,
                process.last.swap_bytes,
            )
            for process in recording.processes
        },
    }


# --- against nothing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["exec", "exit"])
def test_nothing_is_left_of_a_storm(end: str, workloads: Path, probes: Probes) -> None:
    """An address space's place in memory is used again before its process has said EXEC or EXIT."""
    for _ in range(10):
        with beside.spawned([probes], [workloads / "storm", 6, 40, end]) as process:
            assert process.wait(60) == 0
        await_end(probes)
        assert probes.tree().pages == (0, 0, 0, 0)
    assert probes.tally().left_out == 0


@pytest.mark.parametrize("how", ["exit", "exec", "both"])
def test_shared_memory_counts_while_anybody_has_it(how: str, workloads: Path, probes: Probes) -> None:
    rounds, held_pages = 40, (4 << 20) // 4096
    with beside.spawned([probes], [workloads / "sharers", 6, rounds, how], stdin=-1, stdout=-1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(rounds):
            assert process.stdout.read(1) == b"."
            assert probes.tree().pages[1] >= held_pages
            process.stdin.write(b".")
            process.stdin.flush()
        assert process.wait(60) == 0
    await_end(probes)
    assert probes.tree().pages == (0, 0, 0, 0)
