"""The benchmarks' arithmetic. What they measure is asserted nowhere: it is the machine's."""

from __future__ import annotations

import re

import pytest

from benchmarks import contenders, rmap, sample, table
from benchmarks.contenders import AGAIN, EMPTY, MEMTRACK_DEFAULT, PERF, UNTRACED, Output
from benchmarks.programs import SOURCES
from benchmarks.ratios import Spread, ratios
from benchmarks.rounds import Measurement, Series
from benchmarks.workloads import WORKLOADS


def measured(time_ns: float) -> Measurement:
    return Measurement(
        time_ns=time_ns,
        wall_ns=2 * time_ns,
        target_cpu_ns=1000,
        recorder_cpu_ns=500,
        recorder_peak_bytes=1 << 20,
        truth_bytes=4096,
        status=0,
    )


def series(contender: contenders.Contender, *times_ns: float, output: Output | None = None) -> Series:
    return Series(contender, runs=[measured(time_ns) for time_ns in times_ns], output=output or Output())


def test_a_ratio_is_of_what_stood_in_the_same_round() -> None:
    assert ratios([20, 300, 22], [10, 100, 11]) == Spread(2, 2, 3)
    assert ratios([1], [0]) is None


def test_costs_are_compared_with_perfs_round_by_round() -> None:
    rows = {
        row["contender"]: row
        for row in table.rows(
            [
                series(UNTRACED, 90, 190),
                series(EMPTY, 110, 210),
                series(MEMTRACK_DEFAULT, 120, 240, output=Output(450, 100, 0, 4096 * 2)),
                series(AGAIN, 110, 210),
                series(PERF, 200, 300),
            ]
        )
    }
    ours = rows["memtrack"]
    assert ours["added_ns"] == {"median": 30, "low": 20, "high": 40}
    assert ours["of_perf"] == pytest.approx({"median": 0.3, "low": 0.2, "high": 0.4})
    assert ours["of_empty"] == 3
    assert ours["time"] == pytest.approx({"median": 1.2, "low": 1.2, "high": 1.2})
    assert ours["recorder_cpu"]["median"] == 0.5
    assert ours["bytes_per_event"] == 4.5
    assert ours["peak_error"] == 1
    assert "added_ns" not in rows["untraced, again"]
    assert table.text(WORKLOADS[0], list(rows.values()))


def test_no_ratio_to_what_is_noise() -> None:
    rows = table.rows([series(UNTRACED, 100), series(MEMTRACK_DEFAULT, 101), series(AGAIN, 100), series(PERF, 102)])
    assert all(row.get("of_perf") is None for row in rows)


def test_who_failed_is_named_and_the_others_go_on() -> None:
    failed = Series(PERF, absent="not installed")
    text = table.text(WORKLOADS[0], table.rows([series(UNTRACED, 100), failed, series(AGAIN, 100)]))
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
    figures = {"touch": [900.0, 10.0, 20.0, 30.0], "give back": [800.0, 3.0, 2.0, 1.0]}
    assert rmap.by_page({"file": figures, "huge": None}) == {
        ("file", "touch"): 20,
        ("file", "give back"): 2,
        ("file", "both"): 22,
    }
