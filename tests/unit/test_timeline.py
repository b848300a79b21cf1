"""The reducers: a table of what happens and what must come of it, and a plain version of them to compare with."""

from __future__ import annotations

import itertools
import struct
import sys
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memtrack import events, reducer
from memtrack.events import RECORD_BYTES, EventType
from memtrack.reducer import NativeTimeline, Reducer
from memtrack.timeline import Figures, Peak, Process, Result, Timeline
from tests.unit.streams import ANON, FILE, MIB, PAGE, SHMEM, SWAP, Stream

_make: Callable[..., Reducer] = Timeline


@pytest.fixture(autouse=True, params=["python", "c"])
def _each_reducer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "c":
        try:
            NativeTimeline()
        except ImportError:
            pytest.skip("the extension is not built: there is one reducer only")
        monkeypatch.setattr(sys.modules[__name__], "_make", reducer.make)


def reduce(stream: Stream, *, rss: bool = True, rmap: bool = False, sampled: bool = False) -> Result:
    timeline = _make(page_size=PAGE, rss=rss, rmap=rmap, sampled=sampled)
    timeline.feed(stream.data)
    return timeline.result()


def only(result: Result) -> Process:
    (process,) = result.processes
    return process


def by_pid(result: Result) -> dict[int, Process]:
    assert len({process.pid for process in result.processes}) == len(result.processes)
    return {process.pid: process for process in result.processes}


NOTHING = Figures(None, None, None, None, None)


def held(*, file: int = 0, anon: int = 0, swap: int = 0, shmem: int = 0) -> Figures:
    return Figures(file + anon + shmem, anon, file, shmem, swap)


def figures(peak: Peak) -> Figures:
    return Figures(peak.rss_bytes, peak.anon_bytes, peak.file_bytes, peak.shmem_bytes, peak.swap_bytes)


# --- one process ------------------------------------------------------------------------------------------------------


def test_nothing() -> None:
    result = reduce(Stream())
    assert result.peak == Peak(None, None, None, None, None, None, None)
    assert (result.processes, result.processes_left, result.lost_events, result.events) == ([], 0, 0, {})
    assert (result.first_ns, result.last_ns, result.rmap_peak) == (None, None, None)


def test_the_peak_is_the_largest_sum_with_its_parts() -> None:
    stream = Stream().root(10, file=3 * MIB).rss(10, ANON, 5 * MIB).rss(10, FILE, 0)
    at_ns = stream.now_ns
    stream.rss(10, SHMEM, 4 * MIB).rss(10, ANON, 0).rss(10, FILE, 3 * MIB).exit(10)
    result = reduce(stream)
    assert figures(result.peak) == held(anon=5 * MIB, shmem=4 * MIB)
    assert (result.peak.at_ns, result.peak.processes) == (at_ns, 1)
    process = only(result)
    assert figures(process.peak) == held(anon=5 * MIB, shmem=4 * MIB)
    assert (process.peak.at_ns, process.peak.processes) == (at_ns, None)
    assert process.last == held(file=3 * MIB, shmem=4 * MIB)


def test_the_first_instant_of_the_largest_sum_counts() -> None:
    stream = Stream().root(10)
    at_ns = stream.now_ns
    stream.rss(10, ANON, MIB).rss(10, ANON, 0).rss(10, ANON, MIB)
    assert reduce(stream).peak.at_ns == at_ns


def test_swap_is_no_part_of_the_sum() -> None:
    result = reduce(Stream().root(10, anon=2 * MIB).rss(10, SWAP, 9 * MIB).rss(10, ANON, 3 * MIB).exit(10))
    assert figures(result.peak) == held(anon=3 * MIB, swap=9 * MIB)
    assert only(result).last == held(anon=3 * MIB, swap=9 * MIB)


@pytest.mark.parametrize(
    ("wait_status", "exit_code", "signal"),
    [(0, 0, None), (1 << 8, 1, None), (255 << 8, 255, None), (9, None, 9), (11 | 0x80, None, 11)],
)
def test_how_it_ended(wait_status: int, exit_code: int | None, signal: int | None) -> None:
    process = only(reduce(Stream().root(10).exit(10, wait_status)))
    assert (process.exit_code, process.signal, process.state) == (exit_code, signal, "ended")


def test_times_of_a_process() -> None:
    stream = Stream()
    start_ns = stream.now_ns
    stream.fork(10, 1)
    exec_ns = stream.now_ns
    stream.exec(10, "first").sync(10)
    again_ns = stream.now_ns
    stream.exec(10, "second").sync(10)
    end_ns = stream.now_ns
    process = only(reduce(stream.exit(10)))
    assert exec_ns < again_ns
    assert (process.ppid, process.comm) == (1, "second")
    assert (process.seen_ns, process.start_ns, process.exec_ns, process.end_ns) == (
        start_ns,
        start_ns,
        again_ns,
        end_ns,
    )


def test_an_end_before_the_start_is_moved_to_it() -> None:
    """Timestamps of different CPUs may disagree a little; no duration is negative."""
    stream = Stream().root(10)
    stream.now_ns -= 100_000
    process = only(reduce(stream.exit(10)))
    assert process.start_ns is not None
    assert process.end_ns == process.start_ns


def test_alive_at_the_end() -> None:
    result = reduce(Stream().root(10, anon=MIB))
    process = only(result)
    assert (process.end_ns, process.exit_code, process.signal) == (None, None, None)
    assert (process.state, process.last, result.processes_left) == ("alive", held(anon=MIB), 1)


# --- fork, exec, exit -------------------------------------------------------------------------------------------------


def test_fork_starts_from_what_was_copied() -> None:
    result = reduce(Stream().root(10, anon=64 * MIB, file=2 * MIB).fork(11, 10).sync(11, anon=64 * MIB).exit(11))
    assert figures(result.peak) == held(anon=128 * MIB, file=2 * MIB)
    assert result.peak.processes == 2
    child = by_pid(result)[11]
    assert (child.ppid, child.comm) == (10, "job")  # the kernel copies the name
    assert figures(child.peak) == child.last == held(anon=64 * MIB)


def test_a_child_that_shares_its_parents_memory_holds_nothing_of_its_own() -> None:
    stream = Stream().root(10, anon=200 * MIB).fork(11, 10, shares=True).rss(10, ANON, 201 * MIB).exit(11)
    result = reduce(stream)
    assert (result.peak.rss_bytes, result.peak.processes) == (201 * MIB, 2)
    child = by_pid(result)[11]
    assert child.last == figures(child.peak) == NOTHING


def test_vfork_then_exec() -> None:
    stream = Stream().root(10, anon=200 * MIB).fork(11, 10, shares=True)
    result = reduce(stream.exec(11, "tiny").sync(11, file=MIB).rss(11, ANON, MIB).exit(11))
    assert result.peak.rss_bytes == 202 * MIB
    child = by_pid(result)[11]
    assert figures(child.peak) == child.last == held(file=MIB, anon=MIB)


def test_memory_moves_to_who_still_uses_it() -> None:
    """The process that the shared address space was shown under ends; another goes on in it."""
    stream = Stream().root(10, anon=64 * MIB).fork(11, 10, shares=True).exit(10).sync(11, anon=64 * MIB)
    result = reduce(stream.rss(11, ANON, 65 * MIB).exit(11))
    assert result.peak.rss_bytes == 65 * MIB
    first, second = by_pid(result)[10], by_pid(result)[11]
    assert first.last == held(anon=64 * MIB)
    assert second.last == held(anon=65 * MIB)


def test_memory_moves_when_its_process_execs() -> None:
    stream = Stream().root(10, anon=64 * MIB).fork(11, 10, shares=True)
    stream.exec(10).sync(10, file=MIB).sync(11, anon=64 * MIB)
    result = reduce(stream)
    assert result.peak.rss_bytes == 65 * MIB
    assert {pid: process.last.rss_bytes for pid, process in by_pid(result).items()} == {10: MIB, 11: 64 * MIB}


def test_exec_replaces_and_keeps_the_peak() -> None:
    result = reduce(
        Stream().root(10, anon=300 * MIB).exec(10, "light").sync(10, file=MIB).rss(10, ANON, 2 * MIB).exit(10)
    )
    process = only(result)
    assert figures(process.peak) == held(anon=300 * MIB)
    assert process.last == held(anon=2 * MIB, file=MIB)
    assert process.comm == "light"


def test_a_sync_is_one_statement() -> None:
    """Between its four records the figures are of two instants, and their sum never was."""
    stream = Stream().root(10, anon=10 * MIB).sync(10, file=10 * MIB, anon=0)
    assert reduce(stream).peak.rss_bytes == 10 * MIB


def test_exit_takes_it_out_of_the_tree() -> None:
    stream = Stream().root(10, anon=MIB)
    for pid in range(11, 21):
        stream.fork(pid, 10).sync(pid, anon=5 * MIB).exit(pid)
    result = reduce(stream)
    assert (result.peak.rss_bytes, result.peak.processes) == (6 * MIB, 2)
    assert result.processes_left == 1


def test_a_pid_that_is_used_again_is_another_process() -> None:
    stream = Stream().root(10, anon=MIB).fork(11, 10).sync(11, anon=2 * MIB).exit(11, 9)
    result = reduce(stream.fork(11, 10).sync(11, anon=3 * MIB).exit(11, 0))
    _, first, second = result.processes
    assert (first.pid, first.signal, first.last) == (11, 9, held(anon=2 * MIB))
    assert (second.pid, second.exit_code, second.last) == (11, 0, held(anon=3 * MIB))
    assert result.peak.rss_bytes == 4 * MIB


@pytest.mark.parametrize("late", ["rss", "rmap", "exit", "sync", "exec"])
def test_what_comes_late_changes_nothing(late: str) -> None:
    stream = Stream().root(10, anon=MIB).fork(11, 10).sync(11, anon=MIB).exit(11)
    before = reduce(stream, rmap=True)
    happenings: dict[str, Callable[[], Stream]] = {
        "rss": lambda: stream.rss(11, ANON, 99 * MIB),
        "rmap": lambda: stream.rmap(11, ANON, 99),
        "exit": lambda: stream.exit(11, 9),
        "sync": lambda: stream.sync(11, anon=99 * MIB),
        "exec": lambda: stream.exec(11, "ghost"),
    }
    happenings[late]()
    after = reduce(stream, rmap=True)
    assert (after.processes, after.peak, after.rmap_peak) == (before.processes, before.peak, before.rmap_peak)


def test_two_forks_of_one_pid_are_two_processes() -> None:
    result = reduce(Stream().root(10).fork(11, 10).sync(11, anon=MIB).fork(11, 10).sync(11, anon=2 * MIB))
    _, first, second = result.processes
    assert (first.state, first.end_ns) == ("unknown", None)
    assert (second.state, second.last) == ("alive", held(anon=2 * MIB))
    assert result.peak.rss_bytes == 2 * MIB


# --- unknown, adopted -------------------------------------------------------------------------------------------------


def test_an_unknown_pid_starts_a_process() -> None:
    stream = Stream()
    seen_ns = stream.now_ns
    process = only(reduce(stream.rss(10, ANON, MIB).exit(10)))
    assert (process.ppid, process.start_ns, process.seen_ns) == (None, None, seen_ns)
    # What was not observed is not 0.
    assert process.last == Figures(MIB, MIB, None, None, None)


def test_a_fork_that_comes_after_other_events_completes_them() -> None:
    stream = Stream().root(10).rss(11, ANON, MIB)
    result = reduce(stream.fork(11, 10).sync(11, anon=2 * MIB))
    assert by_pid(result)[11].ppid == 10
    assert result.peak.processes == 2


def test_adoption() -> None:
    stream = Stream()
    stream.adopt(20, 5, "postgres").sync(20, anon=64 * MIB).adopt(21, 20, "worker").sync(21, shmem=MIB)
    result = reduce(stream.rss(20, ANON, 65 * MIB))
    first, second = by_pid(result)[20], by_pid(result)[21]
    assert (first.comm, first.ppid, first.start_ns, first.last) == ("postgres", 5, None, held(anon=65 * MIB))
    assert (second.comm, second.ppid, second.last) == ("worker", 20, held(shmem=MIB))
    assert (result.peak.rss_bytes, result.peak.processes) == (66 * MIB, 2)


def test_adopting_what_is_known_changes_only_its_name() -> None:
    process = only(reduce(Stream().root(10, anon=MIB).adopt(10, 5, "renamed")))
    assert (process.ppid, process.comm, process.last) == (1, "renamed", held(anon=MIB))


def test_a_pid_that_ended_can_be_adopted() -> None:
    result = reduce(Stream().root(10).exit(10).adopt(10, 5).sync(10, anon=MIB))
    assert [process.state for process in result.processes] == ["ended", "alive"]
    assert result.processes[1].last == held(anon=MIB)


@pytest.mark.parametrize("kind", [1, 2, 3, 4, 5, 6, 7, 8, 14, 63, 66, 69, 255, 0])
def test_other_types_are_passed_over(kind: int) -> None:
    stream = Stream().root(10, anon=MIB)
    before = reduce(stream)
    stream.raw(struct.pack("=B7xQII24s", kind, stream.now_ns, 77, 77, b"\xff" * 24))
    after = reduce(stream)
    assert (after.peak, after.processes) == (before.peak, before.processes)
    assert sum(after.events.values()) == sum(before.events.values()) + 1


@pytest.mark.parametrize("member", [-1, 4, 2**31 - 1, -(2**31)])
def test_other_members_are_passed_over(member: int) -> None:
    stream = Stream().root(10, anon=MIB).rss(10, member, 9 * MIB).sync_one(10, member, 9 * MIB).rmap(10, member, 9)
    result = reduce(stream, rmap=True)
    assert result.peak.rss_bytes == MIB
    assert result.rmap_peak is not None
    assert result.rmap_peak.rss_bytes == MIB


def test_a_counter_below_zero_is_zero() -> None:
    """Kernels before 6.2 may show one for a moment."""
    result = reduce(Stream().root(10, file=MIB).rss(10, ANON, 2**64 - 4096))
    assert only(result).last == held(file=MIB)


def test_events_are_counted_by_type() -> None:
    stream = Stream().root(10).rss(10, ANON, 0).rss(10, ANON, 0).exit(10)
    assert reduce(stream).events == {"RSS": 2, "FORK": 1, "EXEC": 1, "EXIT": 1, "SYNC": 4}
    stream.raw(bytes([14]) + bytes(RECORD_BYTES - 1))
    assert reduce(stream).events["type 14"] == 1


# --- loss -------------------------------------------------------------------------------------------------------------


def test_after_a_loss_nothing_is_known_until_it_is_said_again() -> None:
    stream = Stream().root(10, anon=10 * MIB).fork(11, 10).sync(11, anon=5 * MIB)
    result = reduce(stream.lost(7))
    assert result.lost_events == 7
    assert result.peak.rss_bytes == 15 * MIB
    assert result.processes_left == 0
    assert {process.state for process in result.processes} == {"unknown"}
    assert {process.last for process in result.processes} == {NOTHING}
    result = reduce(stream.sync(10, anon=9 * MIB).sync(11, anon=8 * MIB))
    assert {pid: process.last for pid, process in by_pid(result).items()} == {
        10: held(anon=9 * MIB),
        11: held(anon=8 * MIB),
    }
    assert (result.peak.rss_bytes, result.peak.processes, result.processes_left) == (17 * MIB, 2, 2)


def test_a_process_whose_exit_was_lost_counts_no_more() -> None:
    stream = Stream().root(10, anon=10 * MIB).fork(11, 10).sync(11, anon=500 * MIB).lost(1)
    result = reduce(stream.sync(10, anon=10 * MIB).rss(10, ANON, 300 * MIB))
    assert (result.peak.rss_bytes, result.processes_left) == (510 * MIB, 1)
    gone = by_pid(result)[11]
    assert (gone.state, gone.end_ns, gone.last) == ("unknown", None, NOTHING)
    assert figures(gone.peak) == held(anon=500 * MIB)


def test_a_pid_whose_exit_was_lost_may_be_used_again() -> None:
    stream = Stream().root(10).fork(11, 10).sync(11, anon=MIB).lost(1).fork(11, 10).sync(11, anon=2 * MIB)
    first, second = (process for process in reduce(stream).processes if process.pid == 11)
    assert (first.state, second.state) == ("unknown", "alive")


def test_a_pid_whose_new_fork_was_lost_is_a_new_process() -> None:
    result = reduce(Stream().root(10, anon=MIB).exit(10).lost(1).rss(10, ANON, 2 * MIB))
    first, second = result.processes
    assert (first.state, second.state, second.ppid) == ("ended", "alive", None)
    assert second.last == Figures(2 * MIB, 2 * MIB, None, None, None)


def test_what_the_tree_held_of_a_kind_that_nobody_knows_is_not_0() -> None:
    stream = Stream().root(10, file=MIB).lost(1).rss(10, SHMEM, 100 * MIB)
    assert figures(reduce(stream).peak) == Figures(100 * MIB, None, None, 100 * MIB, None)


def test_rss_events_restore_their_figure_only() -> None:
    stream = Stream().root(10, anon=10 * MIB, file=3 * MIB).lost(0).rss(10, ANON, 11 * MIB)
    result = reduce(stream, rmap=True)
    assert only(result).last == Figures(11 * MIB, 11 * MIB, None, None, None)
    assert only(result).rmap_last == NOTHING
    assert result.peak.rss_bytes == 13 * MIB


def test_exit_right_after_a_loss() -> None:
    process = only(reduce(Stream().root(10, anon=MIB).lost(1).exit(10, 9)))
    assert (process.state, process.signal, process.last) == ("ended", 9, NOTHING)


def test_losses_add_up() -> None:
    assert reduce(Stream().lost(3).lost(0).lost(2**40)).lost_events == 3 + 2**40


# --- what the kernel side kept ---------------------------------------------------------------------------------------


def test_a_peak_that_was_told_counts_where_it_is_larger() -> None:
    stream = Stream().root(10, anon=MIB).fork(11, 10).sync(11, file=MIB)
    stream.peak(10, 77, anon=5 * MIB, file=MIB).peak(11, 78, anon=1).peak(0, 79, 2, anon=5 * MIB, shmem=MIB)
    result = reduce(stream.exit(11))
    first, second = by_pid(result)[10], by_pid(result)[11]
    assert figures(first.peak) == held(anon=5 * MIB, file=MIB)
    assert (first.peak.at_ns, first.peak.processes) == (77, None)
    assert figures(second.peak) == held(file=MIB)
    assert figures(result.peak) == held(anon=5 * MIB, shmem=MIB)
    assert (result.peak.at_ns, result.peak.processes) == (79, 2)
    # It is no figure of now.
    assert (first.last, second.last) == (held(anon=MIB), held(file=MIB))


def test_a_peak_is_overtaken_by_what_is_seen_later() -> None:
    result = reduce(Stream().root(10).peak(10, 77, anon=5 * MIB).rss(10, ANON, 6 * MIB))
    assert figures(only(result).peak) == held(anon=6 * MIB)


def test_a_peak_stands_instead_of_sums_of_samples() -> None:
    """The root's 5 MiB went before the child got 4, and no record says so."""
    stream = Stream().root(10, anon=5 * MIB).fork(11, 10).sync(11, anon=4 * MIB)
    assert figures(reduce(stream, sampled=True).peak) == held(anon=9 * MIB)
    stream.peak(10, 77, anon=5 * MIB).exit(10).peak(0, 78, 1, anon=6 * MIB)
    result = reduce(stream, sampled=True)
    assert figures(result.peak) == held(anon=6 * MIB)
    assert figures(by_pid(result)[10].peak) == held(anon=5 * MIB)
    assert figures(reduce(stream).peak) == held(anon=9 * MIB)


def test_of_samples_the_largest_peak_counts_and_what_came_after_the_last() -> None:
    stream = Stream().root(10).peak(10, 77, anon=5 * MIB).rss(10, ANON, 6 * MIB)
    assert figures(only(reduce(stream, sampled=True)).peak) == held(anon=6 * MIB)
    stream.peak(10, 78, anon=3 * MIB)
    last = only(reduce(stream, sampled=True)).peak
    assert figures(last) == held(anon=5 * MIB)
    assert last.at_ns == 77


def test_a_peak_in_part_or_of_nothing_is_none() -> None:
    stream = Stream().fork(10, 1)
    stream.peak(10, 0)
    for member in (FILE, ANON, SHMEM):
        stream.add(events.Told(EventType.PEAK, stream.now_ns, 10, 10, member, 0, MIB, 77))
    assert figures(only(reduce(stream)).peak) == NOTHING


# --- layers -----------------------------------------------------------------------------------------------------------


def test_a_layer_that_was_not_recorded_has_no_figures() -> None:
    result = reduce(Stream().root(10, anon=MIB).rss(10, ANON, 2 * MIB), rss=False)
    assert result.peak == Peak(None, None, None, None, None, None, None)
    assert only(result).last == NOTHING
    assert (result.rmap_peak, only(result).rmap_peak, only(result).rmap_last) == (None, None, None)


def rmap_held(**members: int) -> Figures:
    figures = held(**members)
    return Figures(figures.rss_bytes, figures.anon_bytes, figures.file_bytes, figures.shmem_bytes, None)


def rmap_of(stream: Stream) -> tuple[Figures, Figures]:
    """What the only process held last, and at most, by the rmap layer; the tree's peak is the same."""
    result = reduce(stream, rmap=True)
    process = only(result)
    assert process.rmap_last is not None
    assert process.rmap_peak is not None
    assert result.rmap_peak is not None
    assert figures(process.rmap_peak) == figures(result.rmap_peak)
    return process.rmap_last, figures(process.rmap_peak)


def test_rmap_is_a_sum_from_the_last_sync() -> None:
    stream = Stream().root(10, file=MIB).rmap(10, ANON, 512, 0x1000).rmap(10, ANON, -100).rmap(10, FILE, 1, 0x2000)
    last, peak = rmap_of(stream)
    assert last == rmap_held(file=MIB + PAGE, anon=412 * PAGE)
    assert peak == rmap_held(file=MIB, anon=512 * PAGE)
    last, _ = rmap_of(stream.sync(10, anon=5 * PAGE).rmap(10, ANON, 1))
    assert last == rmap_held(anon=6 * PAGE)


def test_rmap_does_not_follow_rss_nor_rss_rmap() -> None:
    stream = Stream().root(10, anon=MIB).rss(10, ANON, 9 * MIB).rmap(10, ANON, 1, 0x1000)
    assert rmap_of(stream)[0] == rmap_held(anon=MIB + PAGE)
    assert only(reduce(stream)).last == held(anon=9 * MIB)


def test_rmap_needs_a_start() -> None:
    result = reduce(Stream().rmap(10, ANON, 5, 0x1000).rmap(10, ANON, -2, 0x1000), rmap=True)
    assert only(result).rmap_last == NOTHING
    assert result.rmap_peak == Peak(None, None, None, None, None, None, None)


def test_rmap_page_size_is_the_recordings() -> None:
    timeline = _make(page_size=65536, rmap=True)
    timeline.feed(Stream().root(10).rmap(10, ANON, 3, 0x10000).data)
    assert timeline.snapshot()[10].rmap_last == rmap_held(anon=3 * 65536)


BASE = {"anon": 512 * PAGE, "file": 64 * PAGE}


@pytest.mark.parametrize(
    ("name", "steps", "peak_pages"),
    [
        ("a huge page is split", [(ANON, 512, 0x200000), (ANON, -512, 0x200000)], 576),
        ("a file page is copied on write", [(ANON, 1, 0x5000), (FILE, -1, 0x5000)], 576),
        ("removal comes first", [(FILE, -1, 0x5000), (ANON, 1, 0x5000)], 576),
        ("removed elsewhere", [(ANON, 512, 0x200000), (ANON, -512, 0x400000)], 1088),
        ("one page is touched and given back", [(ANON, 1, 0x5000), (ANON, -1, 0x5000)], 577),
        ("fewer are removed", [(ANON, 512, 0x200000), (ANON, -1, 0x200000)], 1088),
        ("no address, nothing to tell by", [(ANON, 512, 0), (ANON, -512, 0)], 1088),
        ("two are added, one of them replaces", [(ANON, 2, 0x7000), (ANON, 1, 0x5000), (FILE, -1, 0x5000)], 578),
    ],
)
def test_what_replaces_a_page_in_place_is_no_peak(
    name: str, steps: list[tuple[int, int, int]], peak_pages: int
) -> None:
    stream = Stream().root(10, **BASE)
    for member, pages, addr in steps:
        stream.rmap(10, member, pages, addr)
    last, peak = rmap_of(stream)
    assert peak.rss_bytes == peak_pages * PAGE, name
    assert last.rss_bytes == (576 + sum(pages for _, pages, _ in steps)) * PAGE, name


def test_a_replacement_is_seen_through_what_others_do() -> None:
    stream = Stream().root(10, **BASE).fork(11, 10).sync(11, anon=MIB)
    stream.rmap(10, ANON, 512, 0x200000, tid=10)
    stream.rmap(10, ANON, 1, 0x300000, tid=12).rmap(11, ANON, 1, 0x200000).rss(10, ANON, MIB, tid=12)
    stream.rmap(10, ANON, -512, 0x200000, tid=10)
    result = reduce(stream, rmap=True)
    assert result.rmap_peak is not None
    assert result.rmap_peak.rss_bytes == MIB + (576 + 2) * PAGE


def test_a_huge_page_that_is_touched_and_given_back_was_held() -> None:
    """The kernel's counter moves after it is mapped, which it does not in a split."""
    stream = Stream().root(10, **BASE).rmap(10, ANON, 512, 0x200000).rss(10, ANON, 1024 * PAGE)
    assert rmap_of(stream.rmap(10, ANON, -512, 0x200000))[1].rss_bytes == 1088 * PAGE


def test_a_replacement_is_recognised_across_feeds_at_any_place() -> None:
    stream = Stream().root(10, **BASE)
    for number in range(1, 7):
        stream.rmap(10, ANON, 512, 0x200000 * number, tid=number)
    for number in range(1, 7):
        stream.rmap(10, ANON, -512, 0x200000 * number, tid=number)
    for cut in range(0, len(stream.data), RECORD_BYTES):
        timeline = _make(page_size=PAGE, rmap=True)
        timeline.feed(stream.data[:cut])
        timeline.feed(stream.data[cut:])
        peak = timeline.result().rmap_peak
        assert peak is not None
        assert peak.rss_bytes == 576 * PAGE


def test_a_snapshot_has_what_was_fed() -> None:
    timeline = _make(page_size=PAGE, rmap=True)
    timeline.feed(Stream().root(10, **BASE).rmap(10, ANON, 512, 0x200000).data)
    process = timeline.snapshot()[10]
    assert process.rmap_last == rmap_held(anon=1024 * PAGE, file=64 * PAGE)
    assert process.last == held(anon=512 * PAGE, file=64 * PAGE)
    timeline.feed(Stream().exit(10).data)
    assert timeline.snapshot() == {}


def test_a_figure_below_zero_is_shown_as_it_is() -> None:
    assert rmap_of(Stream().root(10, anon=PAGE).rmap(10, ANON, -2))[0] == rmap_held(anon=-PAGE)


# --- any stream -------------------------------------------------------------------------------------------------------


def test_whole_records_only() -> None:
    with pytest.raises(ValueError, match="49 bytes"):
        _make().feed(bytes(49))


def test_both_byte_orders() -> None:
    results = []
    for order in ("little", "big"):
        stream = Stream(order).root(10, anon=MIB).adopt(12, 10).rmap(10, ANON, -3).lost(5).exit(10, 9).fork(11, 10)
        timeline = _make(page_size=PAGE, byte_order=order, rmap=True)
        timeline.feed(stream.data)
        results.append(timeline.result())
    assert results[0] == results[1]
    assert results[0].lost_events == 5


_PIDS = st.integers(1, 4)
_MEMBERS = st.integers(0, 3)
_SIZES = st.integers(0, 50).map(lambda pages: pages * PAGE)
_STEPS = st.one_of(
    st.tuples(st.just("rss"), _PIDS, _MEMBERS, _SIZES),
    st.tuples(st.just("rss"), _PIDS, _MEMBERS, _SIZES),
    st.tuples(st.just("sync"), _PIDS, _SIZES, _SIZES),
    st.tuples(st.just("fork"), _PIDS, _PIDS, st.booleans()),
    st.tuples(st.just("exec"), _PIDS),
    st.tuples(st.just("exit"), _PIDS),
    st.tuples(st.just("adopt"), _PIDS, _PIDS),
    st.tuples(st.just("rmap"), _PIDS, _MEMBERS, st.integers(-600, 600), st.integers(0, 2).map(lambda n: n << 21)),
    st.tuples(st.just("lost"), st.integers(0, 9)),
)


def stream_of(steps: list[tuple[object, ...]]) -> Stream:
    stream = Stream()
    for name, *arguments in steps:
        if name == "sync":
            pid, anon, shmem = arguments
            stream.sync(pid, anon=anon, shmem=shmem)  # type: ignore[arg-type] # hypothesis's tuples have no types
        elif name == "fork":
            pid, parent, shares = arguments
            stream.fork(pid, parent, shares=bool(shares))  # type: ignore[arg-type] # as above
        else:
            getattr(stream, str(name))(*arguments)
    return stream


@settings(deadline=None, max_examples=300)
@given(st.lists(_STEPS, max_size=60), st.lists(st.integers(0, 150), max_size=4))
def test_it_does_not_matter_how_a_stream_is_cut(steps: list[tuple[object, ...]], cuts: list[int]) -> None:
    data = stream_of(steps).data
    whole, parts = (_make(page_size=PAGE, rmap=True) for _ in range(2))
    whole.feed(data)
    bounds = [0, *sorted(min(cut * RECORD_BYTES, len(data)) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(bounds):
        parts.feed(data[start:end])
    assert parts.result() == whole.result()


@settings(deadline=None, max_examples=300)
@given(st.lists(_STEPS, max_size=60))
def test_the_tree_is_the_sum_of_its_processes_at_every_instant(steps: list[tuple[object, ...]]) -> None:
    """A plain version of the rss layer: after each record, add up what is held by all."""
    data = stream_of(steps).data
    timeline = _make(page_size=PAGE)
    peak, own_peaks = -1, dict[tuple[int, int], int]()
    for offset in range(0, len(data), RECORD_BYTES):
        record = data[offset : offset + RECORD_BYTES]
        timeline.feed(record)
        (event,) = events.decode(record, events.NATIVE)
        if event.type == EventType.RSS or (isinstance(event, events.Figure) and event.member == SHMEM):
            alive = [process for process in timeline.snapshot().values() if process.last.rss_bytes is not None]
            total = sum(process.last.rss_bytes or 0 for process in alive)
            if alive:
                peak = max(peak, total)
            for process in alive:
                if process.pid == event.pid:
                    key = (process.pid, process.seen_ns)
                    own_peaks[key] = max(own_peaks.get(key, 0), process.last.rss_bytes or 0)
    result = timeline.result()
    assert (result.peak.rss_bytes if result.peak.rss_bytes is not None else -1) == peak
    assert {
        (process.pid, process.seen_ns): process.peak.rss_bytes
        for process in result.processes
        if process.peak.rss_bytes is not None
    } == own_peaks
    for figures_of in (result.peak, *(process.peak for process in result.processes)):
        parts = (figures_of.anon_bytes, figures_of.file_bytes, figures_of.shmem_bytes)
        if figures_of.rss_bytes is not None:
            assert figures_of.rss_bytes == sum(part or 0 for part in parts)
