"""What came of the suite on a kernel: its verdict, from the files that the guest left."""

from __future__ import annotations

import io
import json
import tarfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from memtrack.hooks import RSS_TIERS
from tests.vmtest.matrix import Kernel
from tests.vmtest.qemu import Outcome

JUNIT = "junit.xml"
DOCTOR = "doctor.json"
VERDICT = "verdict.json"
# How kernels.toml calls a layer that a kernel cannot have.
OFF = "off"


@dataclass(frozen=True)
class Case:
    """One test on one kernel. `properties` are what it stated with pytest's record_property."""

    name: str
    outcome: str  # passed, failed, skipped
    detail: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """`problems` is empty if the kernel passed."""

    kernel: str
    release: str
    problems: tuple[str, ...]
    cases: tuple[Case, ...]
    duration_s: float

    def count(self, outcome: str) -> int:
        return sum(case.outcome == outcome for case in self.cases)


def parse_junit(text: str) -> list[Case]:
    """Cases of pytest's JUnit file. A test that failed and then failed again in its teardown is one failed case."""
    cases: dict[str, Case] = {}
    for element in ElementTree.fromstring(text).iter("testcase"):
        name = f"{element.get('classname', '')}::{element.get('name', '')}"
        outcome, detail = "passed", ""
        for tag, meaning in (("skipped", "skipped"), ("failure", "failed"), ("error", "failed")):
            found = element.find(tag)
            if found is not None:
                outcome, detail = meaning, found.get("message", "")
        properties = {p.get("name", ""): p.get("value", "") for p in element.iterfind("properties/property")}
        earlier = cases.get(name)
        if earlier is not None and earlier.outcome == "failed":
            continue
        cases[name] = Case(name, outcome, detail, properties)
    return list(cases.values())


def unpack(archive: bytes, folder: Path) -> None:
    """Write the files of the guest's results into `folder`; its plain files only, under their last names."""
    if not archive:
        return
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            source = tar.extractfile(member) if member.isfile() else None
            if source is not None:
                (folder / Path(member.name).name).write_bytes(source.read())


def tier_problems(kernel: Kernel, doctor: str | None) -> list[str]:
    """Where the kernel reaches another tier than its row says; `doctor` is the output of `memtrack doctor --json`."""
    try:
        layers = json.loads(doctor or "")["layers"]
        hook = {tier.description: name for name, tier in RSS_TIERS.items()}.get(layers["rss"]["hook"])
        reached = {"rss": hook, "rmap": layers["rmap"]["tier"]}
        problems = []
        for layer, wanted in (("rss", kernel.rss), ("rmap", kernel.rmap)):
            works = layers[layer]["answer"] == "yes"
            tier = (reached[layer] if works else OFF) or "one without a name"
            if tier != wanted:
                reason = layers[layer]["reason"]
                problems.append(f"{layer} must reach tier {wanted} and is {tier}{f' ({reason})' if reason else ''}")
    except (ValueError, KeyError, TypeError) as error:
        return [f"memtrack doctor --json gave nothing to go by: {error!r}"]
    return problems


def skip_problems(kernel: Kernel, cases: Iterable[Case]) -> list[str]:
    """Workloads that were skipped and should have run."""
    return [
        f"{title(case.name)} was skipped, and is not among the row's skips: {case.detail}"
        for case in cases
        if case.outcome == "skipped" and "::test_workload[" in case.name and title(case.name) not in kernel.skips
    ]


def judge(kernel: Kernel, release: str, outcome: Outcome, folder: Path) -> Verdict:
    """The verdict from how guest-suite.sh ended and the files it left."""
    problems = []
    cases: list[Case] = []
    if outcome.timed_out:
        problems.append(f"ended after {outcome.duration_s:.0f} s, which is too long (see output.log)")
    elif outcome.status is None:
        problems.append("the guest ended without a result (see console.log)")
    else:
        doctor = folder / DOCTOR
        problems += tier_problems(kernel, doctor.read_text() if doctor.exists() else None)
        if outcome.status:
            problems.append(f"the suite ended with {outcome.status}")
    junit = folder / JUNIT
    if junit.exists():
        cases = parse_junit(junit.read_text())
        problems += [f"{case.name}: {case.detail}".splitlines()[0] for case in cases if case.outcome == "failed"]
        problems += skip_problems(kernel, cases)
    if outcome.status is not None and not any(case.outcome == "passed" for case in cases):
        problems.append("no test passed")
    return Verdict(kernel.name, release, tuple(problems), tuple(cases), outcome.duration_s)


def save(verdict: Verdict, folder: Path) -> None:
    data = {
        "kernel": verdict.kernel,
        "release": verdict.release,
        "problems": list(verdict.problems),
        "duration_s": round(verdict.duration_s, 1),
        "cases": [vars(case) for case in verdict.cases],
    }
    (folder / VERDICT).write_text(json.dumps(data, indent=1) + "\n")


def load(folder: Path) -> Verdict | None:
    """The verdict saved in a kernel's folder, or None if the suite has not run on it."""
    file = folder / VERDICT
    if not file.exists():
        return None
    data = json.loads(file.read_text())
    cases = tuple(Case(**case) for case in data["cases"])
    return Verdict(data["kernel"], data["release"], tuple(data["problems"]), cases, data["duration_s"])


def line(verdict: Verdict) -> str:
    """One line on a kernel for a person."""
    word = "FAILED" if verdict.problems else "passed"
    counts = f"{verdict.count('passed')} passed, {verdict.count('failed')} failed, {verdict.count('skipped')} skipped"
    return f"{verdict.kernel:12} {verdict.release:28} {word}  {counts} in {verdict.duration_s:.0f} s"


def title(name: str) -> str:
    """A workload as the table names it: the parameter of its test, or the test itself."""
    test = name.rsplit("::", 1)[-1]
    return test[test.index("[") + 1 : -1] if test.endswith("]") else test.removeprefix("test_")
