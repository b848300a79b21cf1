"""What doctor says about machines of all kinds, from plain data; and that it says something on this one."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest

from memtrack import doctor
from memtrack.doctor import Attempt, describe, to_text
from memtrack.errors import FeatureError, LoadError
from memtrack.facts import KernelFacts
from memtrack.features import Answer, Finding
from memtrack.hooks import choose
from tests.unit.kernels import kernel_facts

EPERM = "operation not permitted"
NEWEST = kernel_facts("7.3")
FENTRY = Finding("fentry", Answer.YES, "an empty program on do_exit loaded and attached")
NO_FENTRY = Finding("fentry", Answer.NO, "the kernel refuses programs on functions: no", "use a kernel that takes them")
NO_BTF = Finding("BTF", Answer.NO, "/sys/kernel/btf/vmlinux does not exist", "use a kernel with CONFIG_DEBUG_INFO_BTF")


def check(report: dict[str, Any]) -> str:
    """What every report keeps to; returns its text."""
    assert json.loads(json.dumps(report)) == report
    answers = {answer.value for answer in Answer}
    for layer in report["layers"].values():
        assert layer["answer"] in answers
        assert (layer["answer"] == "yes") == (layer["reason"] is None)
        # Whoever is told that something does not work is told what to do.
        assert layer["answer"] == "yes" or layer["remedy"]
    for finding in report["environment"]:
        assert finding["answer"] in answers
    text = to_text(report)
    assert "None" not in text
    assert "Traceback" not in text
    assert all(len(line) <= 120 for line in text.splitlines())
    return text


def answers(report: dict[str, Any]) -> dict[str, str]:
    return {name: layer["answer"] for name, layer in report["layers"].items()}


def test_everything_works() -> None:
    report = describe(NEWEST, Attempt(choose(NEWEST, rmap=True)), [FENTRY])
    text = check(report)
    assert set(answers(report).values()) == {"yes"}
    assert report["verdict"] == "memtrack can record here, with and without --rmap"
    assert report["layers"]["rss"]["hook"] == "tp_btf/rss_stat (exact per-CPU sum)"
    assert report["layers"]["rmap"]["tier"] == "folio"
    assert "folio (Linux 6.8 and later)" in text


def test_fentry_refused_is_explained_and_costs_only_rmap() -> None:
    taken = choose(NEWEST, rmap=True, refused={"folio_add_new_anon_rmap": EPERM})
    report = describe(NEWEST, Attempt(taken), [NO_FENTRY])
    check(report)
    assert answers(report) == {"rss": "yes", "lifecycle": "yes", "rmap": "no", "adopt": "yes"}
    assert report["verdict"] == "memtrack can record here, without --rmap"
    rmap = report["layers"]["rmap"]
    assert rmap["reason"] == f"the kernel refused folio_add_new_anon_rmap: {EPERM} ({NO_FENTRY.detail})"
    assert rmap["remedy"] == "use a kernel that takes them; or record without --rmap, which needs none of this"
    # What the kernel would have is told all the same.
    assert {family["generation"] for family in rmap["families"].values()} == {"folio"}


def test_a_kernel_that_is_too_old_for_rmap() -> None:
    facts = kernel_facts("5.10")
    report = describe(facts, Attempt(choose(facts, rmap=True)), [NO_FENTRY])
    text = check(report)
    assert answers(report) == {"rss": "yes", "lifecycle": "yes", "rmap": "no", "adopt": "yes"}
    # Whether it takes fentry makes no difference here.
    assert report["layers"]["rmap"]["reason"].startswith("page_remove_rmap has no vma parameter")
    assert NO_FENTRY.detail not in report["layers"]["rmap"]["reason"]
    assert "do_page_add_anon_rmap" in text


def test_without_privileges_nothing_is_claimed() -> None:
    problem = LoadError(f"cannot load BPF object: {EPERM}", "run as root, or grant CAP_BPF and CAP_PERFMON")
    report = describe(NEWEST, Attempt(problem=problem), [])
    text = check(report)
    assert set(answers(report).values()) == {"could not tell"}
    assert report["verdict"] == "could not try whether memtrack can record here"
    assert report["layers"]["rss"]["remedy"] == problem.remedy
    # Once is enough.
    assert text.count(problem.cause) == 1


def test_a_kernel_that_refuses_everything() -> None:
    problem = FeatureError("nothing can be recorded: the kernel refused task_newtask", "ask doctor")
    report = describe(NEWEST, Attempt(problem=problem), [FENTRY])
    text = check(report)
    assert set(answers(report).values()) == {"no"}
    assert problem.cause in text
    assert "report this as a bug" in text
    assert "ask doctor" not in text


def test_what_the_kernel_lacks_is_known_without_privileges() -> None:
    problem = LoadError(f"cannot load BPF object: {EPERM}", "run as root")
    report = describe(kernel_facts("5.10"), Attempt(problem=problem), [])
    assert answers(report)["rmap"] == "no"
    assert answers(report)["rss"] == "could not tell"


def test_no_btf() -> None:
    facts = KernelFacts(problem="cannot read the kernel's BTF: there is none")
    report = describe(facts, Attempt(problem=LoadError("nothing can be recorded")), [NO_BTF])
    text = check(report)
    assert set(answers(report).values()) == {"no"}
    assert report["verdict"] == "memtrack cannot account memory here"
    assert report["layers"]["rss"]["remedy"] == NO_BTF.remedy
    assert report["layers"]["rmap"]["families"] == {}
    assert text.count(facts.problem or "") == 1


@pytest.mark.parametrize("lost", ["task_newtask", "sched_process_exec", "sched_process_exit"])
def test_a_lost_lifecycle_hook(lost: str) -> None:
    report = describe(NEWEST, Attempt(choose(NEWEST, rmap=True, refused={lost: EPERM})), [FENTRY])
    check(report)
    expected = (
        "memtrack can record here, but not everything"
        if lost == "task_newtask"
        else "memtrack cannot account memory here"
    )
    assert report["verdict"] == expected
    assert report["layers"]["lifecycle"]["reason"].startswith(f"the kernel refused {lost}: {EPERM}")
    assert report["layers"]["lifecycle"]["remedy"].startswith("report this as a bug")


def test_every_kernel_can_be_described() -> None:
    for version in ("5.10", "5.18", "6.1", "6.5", "6.7", "6.12", "7.3"):
        facts = kernel_facts(version)
        text = check(describe(facts, Attempt(choose(facts, rmap=True)), [FENTRY]))
        assert re.search(r"^rss +yes ", text, re.MULTILINE)


def test_this_machine_gets_a_report_whatever_it_is() -> None:
    report = doctor.collect()
    check(report)
    subjects = [finding["subject"] for finding in report["environment"]]
    assert {"BTF", "CAP_BPF", "lockdown", "initial pid namespace", "page size", "fentry", "tp_btf"} <= set(subjects)


def test_without_the_extension_it_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ImportError(f"no {name}")

    monkeypatch.setattr("importlib.import_module", absent)
    monkeypatch.setitem(sys.modules, "memtrack.loader", None)
    report = doctor.collect()
    check(report)
    assert set(answers(report).values()) == {"no"}
    assert "the native extension cannot be loaded" in report["layers"]["rss"]["reason"]
