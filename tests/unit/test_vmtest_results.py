"""Verdicts on kernels, from what their guests left."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memtrack.hooks import RSS_TIERS
from tests.vmtest import results
from tests.vmtest.matrix import Kernel
from tests.vmtest.qemu import Outcome
from tests.vmtest.results import Case

KERNEL = Kernel("6.12", "6.12", "amd64", "cloud-amd64", "why", rss="percpu", rmap="folio")
OLD = Kernel("5.10", "5.10", "amd64", "cloud-amd64", "why", rss="count", rmap="off")

JUNIT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest" errors="1" failures="1" skipped="1" tests="4">
<testcase classname="tests.bpf.test_workloads" name="test_workload[touch_anon]" time="1.0"><properties>
<property name="pages_off_rss" value="0"/><property name="pages_off_rmap" value="0"/>
<property name="bound_rss" value="0"/>
</properties></testcase>
<testcase classname="tests.bpf.test_workloads" name="test_workload[fork child]"><failure
message="3 pages off">x</failure></testcase>
<testcase classname="tests.bpf.test_workloads" name="test_workload[swap]"><skipped
message="no zram">x</skipped></testcase>
<testcase classname="tests.bpf.test_doctor" name="test_a"><error message="failed on teardown">x</error></testcase>
</testsuite></testsuites>
"""


def doctor(rss: str = "percpu", rmap: str | None = "folio", **rss_layer: Any) -> str:
    hook = RSS_TIERS[rss].description if rss in RSS_TIERS else rss
    layers = {
        "rss": {"hook": hook, "answer": "yes", "reason": None, **rss_layer},
        "rmap": {"tier": rmap, "answer": "yes" if rmap else "no", "reason": None if rmap else "no vma"},
    }
    return json.dumps({"layers": layers})


def test_parse_junit() -> None:
    cases = results.parse_junit(JUNIT)
    assert [(case.name.split("::")[1], case.outcome, case.detail) for case in cases] == [
        ("test_workload[touch_anon]", "passed", ""),
        ("test_workload[fork child]", "failed", "3 pages off"),
        ("test_workload[swap]", "skipped", "no zram"),
        ("test_a", "failed", "failed on teardown"),
    ]
    assert cases[0].properties == {"pages_off_rss": "0", "pages_off_rmap": "0", "bound_rss": "0"}


def test_a_workload_must_run_unless_the_row_says_otherwise() -> None:
    kernel = replace(KERNEL, skips=("collapse madvise", "touch_anon", "ksm"))
    cases = [
        Case("t::test_workload[collapse madvise]", "skipped", "no MADV_COLLAPSE"),
        Case("t::test_workload[swap]", "skipped", "no zram"),
        Case("t::test_workload[touch_anon]", "passed"),
        Case("t::test_workload[ksm]", "failed"),
        Case("t::test_real_program[git]", "skipped", "not installed"),
    ]
    assert results.skip_problems(kernel, cases) == [
        "swap was skipped, and is not among the row's skips: no zram",
    ]


def test_a_teardown_after_a_failure_does_not_hide_it() -> None:
    twice = """<testsuite><testcase classname="a" name="b"><failure message="wrong"/></testcase>
        <testcase classname="a" name="b"><error message="leaked"/></testcase></testsuite>"""
    (case,) = results.parse_junit(twice)
    assert (case.outcome, case.detail) == ("failed", "wrong")


def test_tiers_as_demanded() -> None:
    assert results.tier_problems(KERNEL, doctor()) == []
    assert results.tier_problems(OLD, doctor("count", None)) == []


def test_a_lesser_tier_is_a_problem() -> None:
    assert results.tier_problems(KERNEL, doctor("classic", None)) == [
        "rss must reach tier percpu and is classic",
        "rmap must reach tier folio and is off (no vma)",
    ]


def test_a_better_tier_is_a_problem_too() -> None:
    """The row then says something untrue, and so does the table made of it."""
    assert results.tier_problems(OLD, doctor("count", "page")) == ["rmap must reach tier off and is page"]


def test_a_layer_that_does_not_work_is_off_whatever_its_hook_is_called() -> None:
    (problem,) = results.tier_problems(KERNEL, doctor(answer="no", reason="refused"))
    assert problem == "rss must reach tier percpu and is off (refused)"


def test_a_hook_without_a_tier_is_a_problem() -> None:
    assert results.tier_problems(KERNEL, doctor("tp_btf/else")) == [
        "rss must reach tier percpu and is one without a name"
    ]


@pytest.mark.parametrize("text", [None, "", "Traceback", "{}", "[]", '{"layers": {"rss": {}}}'])
def test_no_word_from_doctor_is_a_problem(text: str | None) -> None:
    (problem,) = results.tier_problems(KERNEL, text)
    assert problem.startswith("memtrack doctor --json gave nothing to go by")


def ended(status: int | None, duration_s: float = 1.0, timed_out: bool = False) -> Outcome:
    return Outcome(status, b"", duration_s, timed_out)


def fill(folder: Path, junit: str = JUNIT, said: str | None = None) -> Path:
    (folder / results.JUNIT).write_text(junit)
    (folder / results.DOCTOR).write_text(said or doctor())
    return folder


def test_a_kernel_passes(tmp_path: Path) -> None:
    cases = '<testcase classname="a" name="b"/><testcase classname="a" name="c"><skipped/></testcase>'
    junit = f"<testsuite>{cases}</testsuite>"
    verdict = results.judge(KERNEL, "6.12.117", ended(0, 61.2), fill(tmp_path, junit))
    assert verdict.problems == ()
    assert results.line(verdict).split(maxsplit=3) == [
        "6.12",
        "6.12.117",
        "passed",
        "1 passed, 0 failed, 1 skipped in 61 s",
    ]


def test_failed_tests_are_named(tmp_path: Path) -> None:
    verdict = results.judge(KERNEL, "6.12.117", ended(1, 1.0), fill(tmp_path))
    assert verdict.problems == (
        "the suite ended with 1",
        "tests.bpf.test_workloads::test_workload[fork child]: 3 pages off",
        "tests.bpf.test_doctor::test_a: failed on teardown",
        "swap was skipped, and is not among the row's skips: no zram",
    )
    assert "FAILED" in results.line(verdict)


def test_a_guest_that_died_is_no_success(tmp_path: Path) -> None:
    verdict = results.judge(KERNEL, "6.12.117", ended(None, 1.0), tmp_path)
    assert verdict.problems == ("the guest ended without a result (see console.log)",)


def test_a_guest_out_of_time_is_no_success(tmp_path: Path) -> None:
    verdict = results.judge(KERNEL, "6.12.117", ended(None, 3600.0, timed_out=True), tmp_path)
    assert verdict.problems == ("ended after 3600 s, which is too long (see output.log)",)


def test_a_suite_in_which_nothing_ran_is_no_success(tmp_path: Path) -> None:
    skipped = '<testsuite><testcase classname="a" name="b"><skipped/></testcase></testsuite>'
    assert results.judge(KERNEL, "6.12.117", ended(0, 1.0), fill(tmp_path, skipped)).problems == ("no test passed",)
    assert results.judge(KERNEL, "6.12.117", ended(5, 1.0), fill(tmp_path, "<testsuite/>")).problems == (
        "the suite ended with 5",
        "no test passed",
    )


def test_verdicts_round_trip(tmp_path: Path) -> None:
    verdict = results.judge(KERNEL, "6.12.117", ended(1, 1.0), fill(tmp_path))
    results.save(verdict, tmp_path)
    assert results.load(tmp_path) == verdict
    assert results.load(tmp_path / "other") is None


def tar(*members: tuple[str, bytes | None]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as out:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if content is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            else:
                info.size = len(content)
            out.addfile(info, io.BytesIO(content or b""))
    return stream.getvalue()


def test_unpack_writes_plain_files_into_the_folder_only(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    results.unpack(tar(("./junit.xml", b"<x/>"), ("../../escaped", b"!"), ("link", None)), folder)
    assert sorted(path.name for path in folder.iterdir()) == ["escaped", "junit.xml"]
    assert list(tmp_path.iterdir()) == [folder]
    results.unpack(b"", folder)
