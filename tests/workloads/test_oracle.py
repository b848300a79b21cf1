"""The oracle itself, without memtrack: against the kernel's counters where those are exact, and by both its ways."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

import pytest

from tests.bpf import environment, harness, points, replay
from tests.bpf.points import Point, Report

PROGRAMS = (
    ["touch_anon"],
    ["file_mapping", "private"],
    ["file_mapping", "shared"],
    ["shared_memory", "anon"],
    ["shared_memory", "memfd"],
    ["shared_memory", "tmpfs"],
    ["shared_memory", "sysv"],
    ["fork_child"],
    ["exec_image", "thread"],
    ["many_threads"],
)

NOBODY = 65534  # a user without rights of any kind, by convention


@pytest.fixture(scope="module")
def built() -> Path:
    return harness.build()


def report_of(built: Path, program: list[str], user: int | None = None) -> Report:
    with environment.file_folder() as folder:
        folder.chmod(0o777)
        report_path = folder / "report"
        variables = os.environ | {"MEMTRACK_ORACLE": str(report_path), "MEMTRACK_FILE_DIR": str(folder)}
        ended = subprocess.run([built / program[0], *program[1:]], env=variables, timeout=300, check=False, user=user)
        report = points.read(report_path)
    if ended.returncode == harness.STATUS_SKIPPED:
        pytest.skip(report.skipped or "no reason given")
    assert ended.returncode == 0, "the workload's own answer is wrong, or its oracle"
    return report


def counters_are_exact() -> bool:
    """Whether /proc/PID/status sums over all CPUs: from 6.16, and in stable releases from 6.12.39."""
    version = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:3])
    return version >= (6, 16) or (6, 12, 39) <= version < (6, 13)


def counters_bound_pages(point: Point, member: str) -> int:
    """How far status may be off: each CPU keeps a batch to itself from 6.2 on, each thread its changes before."""
    if counters_are_exact():
        return 0
    processors = len(re.findall(r"^processor|^cpu\d", Path("/proc/stat").read_text(), re.MULTILINE))
    batch = max(32, 2 * processors)  # lib/percpu_counter.c, compute_batch_value()
    return max(batch * processors, replay.bound_pages(point, member, cached=True))


@pytest.mark.parametrize("program", PROGRAMS, ids=" ".join)
def test_walks_agree_with_the_counters(program: list[str], built: Path) -> None:
    report = report_of(built, program)
    assert report.points
    for point in report.points:
        assert point.source == "pagemap"
        for member, counter in point.counters.items():
            off = abs(counter - point.figure(member))
            assert off <= counters_bound_pages(point, member), f"{member} at {point.name!r}"


@pytest.mark.parametrize("program", PROGRAMS, ids=" ".join)
def test_both_ways_find_the_same(program: list[str], built: Path) -> None:
    """Without privilege smaps is the only source, and the workload finds the same answer by it.

    With privilege each walk holds the one against the other.
    """
    report = report_of(built, program, user=NOBODY)
    assert {point.source for point in report.points} == {"smaps"}
