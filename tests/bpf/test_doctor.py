"""Doctor's answers against what recording on this kernel comes to."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import pytest

import memtrack
from memtrack import doctor, hooks

pytestmark = [pytest.mark.bpf, pytest.mark.core]


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return doctor.collect()


def finding(report: dict[str, Any], subject: str) -> str:
    answer: str = next(f["answer"] for f in report["environment"] if f["subject"] == subject)
    return answer


def test_what_works_is_what_a_recording_has(report: dict[str, Any], tmp_path: Path) -> None:
    with (tmp_path / "recording").open("w+b") as output:
        sources = memtrack.record(["true"], rmap=True, output=output).sources
    layers = report["layers"]
    for name, source in sources.items():
        assert (layers[name]["answer"] == "yes") == (source["reason"] is None), (name, source["reason"])
    assert layers["rss"]["hook"] == sources["rss"]["hook"]
    assert layers["rmap"]["tier"] == sources["rmap"]["tier"]


def test_rss_and_lifecycle_work_on_every_kernel_that_is_tested(report: dict[str, Any]) -> None:
    assert finding(report, "tp_btf") == "yes"
    assert {name: report["layers"][name]["answer"] for name in ("rss", "lifecycle", "adopt")} == {
        "rss": "yes",
        "lifecycle": "yes",
        "adopt": "yes",
    }


def test_a_kernel_that_takes_no_fentry_is_found_out(report: dict[str, Any]) -> None:
    rmap = report["layers"]["rmap"]
    if finding(report, "fentry") == "no":
        assert rmap["answer"] == "no"
        assert "the kernel refuse" in rmap["reason"]
    elif "PREEMPT_RT" in platform.version():
        assert (rmap["answer"], rmap["reason"]) == ("no", hooks.PREEMPTED_SUMS)
    elif rmap["answer"] == "no":
        # Then it is for want of functions to hook, and a kernel that has them all has no excuse.
        assert any(family["reason"] for family in rmap["families"].values())
