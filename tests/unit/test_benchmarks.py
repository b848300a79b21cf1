"""The benchmarks' arithmetic. What they measure is asserted nowhere: it is the machine's."""

from __future__ import annotations

import re

import pytest

from benchmarks import contenders, sample, table
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


def test_both_sides_of_the_producer_agree() -> None:
    source = (SOURCES / "produce.bpf.c").read_text()
    assert re.search(rf"#define RECORDS {sample.RECORDS}\b", source)


def test_names_are_unique() -> None:
    for names in ([one.name for one in contenders.CONTENDERS], [one.name for one in WORKLOADS]):
        assert len(set(names)) == len(names)
