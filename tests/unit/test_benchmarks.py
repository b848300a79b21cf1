"""The benchmarks' arithmetic. What they measure is asserted nowhere: it is the machine's."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest

from benchmarks import consumer, contenders, figures, reaped, rmap, sample, table
from benchmarks.contenders import AGAIN, EMPTY, MEMTRACK_DEFAULT, PERF, STARVED, UNTRACED, Output
from benchmarks.programs import SOURCES
from benchmarks.ratios import Spread, ratios, visible
from benchmarks.rounds import Measurement, Series
from benchmarks.workloads import WORKLOADS, Workload
from memtrack.events import NATIVE, RECORD_BYTES, EventType, decode

SIZES = {"anon_bytes": 3 << 12, "file_bytes": 1 << 12, "shmem_bytes": 0}


def measured(time_ns: float) -> Measurement:
    return Measurement(
        time_ns=time_ns,
        wall_ns=2 * time_ns,
        target_cpu_ns=1000,
        recorder_cpu_ns=500,
        recorder_peak_bytes=1 << 20,
        truth_bytes=4096,
        largest_bytes=4096,
        held=[{"pid": 1, "last": SIZES}, {"pid": 2, "peak": SIZES, "last": SIZES}],
        status=0,
    )


def series(contender: contenders.Contender, *times_ns: float, outputs: list[Output] | None = None) -> Series:
    runs = [measured(time_ns) for time_ns in times_ns]
    return Series(contender, runs=runs, outputs=outputs or [Output()] * len(runs))


def output(*, disk_bytes: int = 450, lost: int = 0, peak_pages: int = 2, last_anon_bytes: int = 3 << 12) -> Output:
    """Of 100 events."""
    told = {"peak": SIZES, "last": SIZES | {"anon_bytes": last_anon_bytes}}
    return Output(disk_bytes, 100, lost, peak_pages << 12, peak_pages << 12, {1: told, 2: told, 3: told})


def test_a_ratio_is_of_what_stood_in_the_same_round() -> None:
    assert ratios([20, 300, 22], [10, 100, 11]) == Spread(2, 2, 3)
    assert ratios([1], [0]) is None


def test_costs_are_compared_with_perfs_round_by_round() -> None:
    rows = {
        row["contender"]: row
        for row in figures.rows(
            [
                series(UNTRACED, 97, 197),
                series(EMPTY, 110, 210),
                series(MEMTRACK_DEFAULT, 120, 240, outputs=[output(), output()]),
                series(AGAIN, 103, 203),
                series(PERF, 200, 300),
            ]
        )
    }
    ours = rows["memtrack"]
    assert ours["added_ns"] == {"median": 30, "low": 20, "high": 40}
    assert ours["of_perf"] == pytest.approx({"median": 0.3, "low": 0.2, "high": 0.4})
    assert ours["of_empty"] == pytest.approx({"median": 3, "low": 2, "high": 4})
    assert ours["time"] == pytest.approx({"median": 1.2, "low": 1.2, "high": 1.2})
    assert ours["recorder_cpu"]["median"] == 0.5
    assert ours["bytes_per_event"] == 4.5
    assert ours["peak_error"] == 1
    assert ours["rate"] == pytest.approx({"median": 1 / 1.2, "low": 1 / 1.2, "high": 1 / 1.2})
    assert "added_ns" not in rows["untraced, again"]


def test_of_several_rounds_it_is_the_worst_that_counts() -> None:
    said = [output(disk_bytes=400), output(lost=300, peak_pages=1), output(lost=100), output(last_anon_bytes=2 << 12)]
    _, row = figures.rows([series(UNTRACED, 1, 1, 1, 1), series(MEMTRACK_DEFAULT, 1, 1, 1, 1, outputs=said)])
    assert (row["lost"], row["lost_share"]["median"]) == (300, (0.75 + 0.5) / 2)
    assert row["disk_bytes"] == 450
    assert (row["peak_error"], row["largest_off_bytes"]) == (1, 4096)
    assert (row["figures"], row["figures_off_bytes"]) == (9, -4096)
    (problem,) = figures.wrong([row])
    assert "memtrack" in problem
    assert "-4,096 bytes" in problem
    assert not figures.wrong(figures.rows([series(MEMTRACK_DEFAULT, 1, outputs=[output()])]))


def test_the_starved_recorders_target_is_compared_with_the_defaults() -> None:
    rows = figures.rows([series(UNTRACED, 1, 1), series(MEMTRACK_DEFAULT, 10, 20), series(STARVED, 9, 20)])
    assert rows[-1]["of_default"] == pytest.approx({"median": 0.95, "low": 0.9, "high": 1})
    assert "0.95 (0.90..1.00) of that under memtrack" in table.text(WORKLOADS[0], rows)


@pytest.mark.parametrize("again", [100, 104])
def test_no_ratio_to_what_is_noise(again: float) -> None:
    rows = figures.rows(
        [series(UNTRACED, 100), series(MEMTRACK_DEFAULT, 101), series(AGAIN, again), series(PERF, 100.9)]
    )
    assert all(row.get("of_perf") is None for row in rows)


def test_one_round_that_was_disturbed_leaves_the_ratio() -> None:
    assert visible([10, -80, 11, 12], [100, 190, 100, 100], [2, 180, 3, 4])
    assert not visible([10, -80, 11, 3], [100, 190, 100, 100], [2, 180, 3, 4])
    assert not visible([10, 11, 12], [100, 100, 100], [20, 13, 15])
    assert not visible([], [], [])


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name.partition(":")[0])
def test_what_is_printed_fits_a_code_block(workload: Workload) -> None:
    lost = [output(disk_bytes=12345 << 20, lost=12_345_678)] * 2
    failed = Series(contenders.CONTENDERS[-1], absent="failed: " + "because of this " * 20)
    names = [one for one in contenders.CONTENDERS[:-1] if one is not UNTRACED]
    found = [
        series(UNTRACED, 1234567, 2345678),
        *(series(one, 1345678, 3456789, outputs=lost) for one in names),
        failed,
    ]
    text = table.text(workload, figures.rows(found))
    assert "memtrack --resolution 64KiB" in text
    assert "rate" in text if workload.rate else "elapsed" in text
    assert max(map(len, (text + table.LEGEND).splitlines())) <= table.WIDTH


def test_what_was_made_is_in_the_file_or_lost_there() -> None:
    row = {"part": "all", "per_cpu_second": {"median": 1e6, "low": 1e6, "high": 1e6}}
    assert not consumer.wrong([row, row | {"accounts": [(10, 7, 3)]}])
    (problem,) = consumer.wrong([row | {"accounts": [(10, 7, 3), (10, 8, 1)]}])
    assert "10 made IS NOT 8 in the file + 1 LOST there" in problem
    text = consumer.text([row, row | {"accounts": [(10, 7, 3)]}])
    assert "10 made = 7 in the file + 3 LOST there" in text
    assert max(map(len, text.splitlines())) <= table.WIDTH


def test_what_processes_leave_is_told() -> None:
    found = dict.fromkeys(("events", "lost", "left_out", "descriptors_left", "bpf_objects_left"), 0)
    found |= {"bpf_objects": 20, "few_bytes": 1 << 20, "many_bytes": (1 << 20) + 9000 * 800, "result_bytes": 9 << 20}
    assert not reaped.wrong(found)
    assert "800 B for each process more" in reaped.text(found)
    assert reaped.wrong(found | {"bpf_objects_left": 2}) == ["after 10,000 processes: 2 BPF objects are left"]


@pytest.mark.parametrize("of", [sample.faults, sample.mixed])
def test_the_sample_is_the_same_each_time(of: Callable[[], sample.Sample]) -> None:
    first = of().records
    sample.faults.cache_clear()
    sample.mixed.cache_clear()
    assert of().records == first
    assert len(first) == sample.RECORDS * RECORD_BYTES
    events = list(decode(first, NATIVE))
    assert all(earlier.time_ns <= later.time_ns for earlier, later in itertools.pairwise(events))
    assert {event.type for event in events} >= {EventType.RSS}


def test_who_failed_is_named_and_the_others_go_on() -> None:
    failed = Series(PERF, absent="not installed")
    text = table.text(WORKLOADS[0], figures.rows([series(UNTRACED, 100), failed, series(AGAIN, 100)]))
    assert "perf record: not installed" in text


def test_perfs_events_are_understood() -> None:
    line = "kmem:rss_stat: mm_id=3114459421 curr=1 type=MM_ANONPAGES size=135168B"
    assert contenders.PERF_EVENT.search(line).groups() == ("3114459421", "ANONPAGES", "135168")  # type: ignore[union-attr]


def test_why_bpftrace_does_not_run_is_its_last_error() -> None:
    said = (
        "ERROR: no limit\nstdin:1:1-25: ERROR: tracepoint not found: kmem:rss_stat\ntracepoint:kmem:rss_stat {}\n~~~~"
    )
    assert contenders.last_error(said) == "stdin:1:1-25: ERROR: tracepoint not found: kmem:rss_stat"
    assert contenders.last_error("killed\n") == "killed"
    assert contenders.last_error("") == "it does not say why"


def test_both_sides_of_the_producer_agree() -> None:
    source = (SOURCES / "produce.bpf.c").read_text()
    assert re.search(rf"#define RECORDS {sample.RECORDS}\b", source)


def test_names_are_unique() -> None:
    for names in ([one.name for one in contenders.CONTENDERS], [one.name for one in WORKLOADS]):
        assert len(set(names)) == len(names)


def pages(touch_ns: float) -> dict[tuple[str, str], float]:
    return {("anonymous", "touch"): touch_ns}


def test_what_the_rmap_layer_adds_is_compared_with_what_the_rss_layer_adds() -> None:
    (row,) = rmap.table(
        {
            "untraced": [pages(1000), pages(2000)],
            "every change": [pages(1101), pages(2101)],
            "every change, with rmap": [pages(1301), pages(2401)],
            "untraced, again": [pages(1002), pages(2002)],
        }
    )
    assert (row.untraced, row.noise) == (Spread(1501, 1001, 2001), Spread(2, 2, 2))
    assert (row.rss, row.rmap, row.ratio) == (Spread(100, 100, 100), Spread(250, 200, 300), Spread(2.5, 2, 3))
    assert "2.50 (2.00..3.00)" in rmap.text([row])


@pytest.mark.parametrize(("untraced", "again", "alone"), [(1000, 1000, 1009), (1000, 1060, 1130)])
def test_no_ratio_to_an_rss_layer_that_adds_next_to_nothing(untraced: float, again: float, alone: float) -> None:
    runs = {"untraced": untraced, "every change": alone, "every change, with rmap": 1500, "untraced, again": again}
    (row,) = rmap.table({name: [pages(time_ns)] for name, time_ns in runs.items()})
    assert row.ratio is None
    assert rmap.text([row])


def test_the_first_repetition_counts_for_nothing() -> None:
    taken = {"touch": [900.0, 10.0, 20.0, 30.0], "give back": [800.0, 3.0, 2.0, 1.0]}
    assert rmap.by_page({"file": taken, "huge": None}) == {
        ("file", "touch"): 20,
        ("file", "give back"): 2,
        ("file", "both"): 22,
    }
