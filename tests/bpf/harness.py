"""Runs workloads under memtrack and holds the recordings against the workloads' own oracles.

python -m tests.bpf.harness --all [--rmap]        one line per workload; exit status 1 if any is off
python -m tests.bpf.harness [--rmap] NAME...
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from memtrack import Tracker
from memtrack.recording import Recording
from tests.bpf import environment, replay
from tests.bpf.checks import REPLACED_PAGES, Run
from tests.bpf.drivers import Session
from tests.bpf.environment import UnavailableError
from tests.bpf.points import Report
from tests.bpf.real_programs import PROGRAMS
from tests.bpf.replay import MEMBERS, RMAP, RSS, Comparison
from tests.bpf.rows import ROWS, Row

SOURCES = Path(__file__).resolve().parents[1] / "workloads"
BUILT = SOURCES.parents[1] / "build" / "workloads"
# Hooks run preemptible on PREEMPT_RT, and the kernel skips a program that runs already on the CPU: events are lost,
# and it is their count, and the figures afterwards, that must be right.
PREEMPTIBLE = "PREEMPT_RT" in platform.version()
FEW_ARGUMENTS_BYTES = 512  # a program's path, its name and a number
STATUS_SKIPPED = 77  # the workloads' exit status for what this machine cannot show; the reason is in the report


@dataclass(frozen=True)
class Outcome:
    """`rmap_reason`: why there was no rmap layer."""

    row: Row
    skipped: str | None = None
    rmap_reason: str | None = None
    comparison: Comparison | None = None
    problems: list[str] = field(default_factory=list)
    lost_events: int = 0

    @property
    def failed(self) -> bool:
        return bool(self.problems)

    def pages_off(self, layer: str) -> int | None:
        return None if self.comparison is None else self.comparison.worst(layer)

    def bound(self, layer: str) -> int:
        return 0 if self.comparison is None else self.comparison.bound(layer)

    def __str__(self) -> str:
        """One line: pages off by layer and member, and how many the kernel may be off."""
        if self.skipped is not None:
            return f"{self.row.name:34} skipped: {self.skipped}"
        word = "FAILED" if self.failed else "ok"
        lost = f"  {self.lost_events} events lost" if self.lost_events else ""
        return f"{self.row.name:34} {word:6} {self._layer(RSS)}  {self._layer(RMAP)}{lost}"

    def _layer(self, layer: str) -> str:
        if self.comparison is None or self.comparison.worst(layer) is None:
            return f"{layer} off"
        return " ".join([layer, *(self._member(layer, member) for member in MEMBERS[layer])])

    def _member(self, layer: str, member: str) -> str:
        assert self.comparison is not None
        bound = self.comparison.bound(layer, member)
        return f"{member} {self.comparison.worst(layer, member)}" + (f" (of {bound})" if bound else "")


def build() -> Path:
    """The built workloads; a guest has no compiler and brings them along."""
    brought = os.environ.get("MEMTRACK_WORKLOADS")
    if brought:
        return Path(brought)
    with contextlib.suppress(FileNotFoundError):
        subprocess.run(["make", "-s", "-C", SOURCES, f"BUILD={BUILT}"], check=True)
    return BUILT


def run(row: Row, built: Path, *, rmap: bool) -> Outcome:
    """One workload, recorded, read back and compared."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="memtrack-")))
        files = stack.enter_context(environment.file_folder())
        stack.enter_context(environment.alone())
        stack.enter_context(environment.no_khugepaged())
        values: dict[str, str] = {}
        try:
            for need in row.needs:
                values |= stack.enter_context(environment.NEEDS[need]())
            plain = [str(built / row.command[0]), *(argument.format(**values) for argument in row.command[1:])]
            command = row.disguise([*plain], files)
        except UnavailableError as reason:
            return Outcome(row, skipped=str(reason))
        report_path, recording_path = folder / "report", folder / "recording.zst"
        variables = os.environ | {"MEMTRACK_ORACLE": str(report_path), "MEMTRACK_FILE_DIR": str(files)}
        with recording_path.open("wb") as output:
            tracker = Tracker(output, rmap=rmap, command=command)
            with tracker:
                session = Session(tracker, command, variables, folder, report_path)
                plan = tracker.plan
                row.driver(session)
        report = session.report()
        if session.returncode == STATUS_SKIPPED:
            return Outcome(row, skipped=report.skipped or "the workload does not say why")
        cached = not plan.counters_are_percpu
        with tracker.recording as recording:
            comparison = replay.compare(recording_path, report.watched, cached=cached)
            problems = [f"the workload ended with status {session.returncode}"] if session.returncode else []
            problems += comparison.problems
            if comparison.result.processes != recording.processes or comparison.result.peak != recording.peak:
                problems.append("the file, read back, says other than what was recorded")
            problems += [str(difference) for difference in comparison.differences if difference.excessive]
            problems += _whole(recording, report)
            exact = [] if cached else [RSS]
            exact += [RMAP] if plan.rmap.tier else []
            if not recording.lost_events:  # loss costs resolution: what was between quiet points may be what is lost
                problems += _peaks(row, recording, report, exact)
                problems += _rises(row, comparison, exact, variables)
                for check in row.checks if not problems else ():  # they rely on a run that went as it should
                    problems += check(Run(recording, report, session, exact))
            return Outcome(row, None, plan.rmap.reason, comparison, problems, recording.lost_events or 0)


def _whole(recording: Recording, report: Report) -> list[str]:
    problems = []
    if recording.lost_events and not PREEMPTIBLE:
        problems.append(f"{recording.lost_events} events were lost")
    for layer in ("rss", "lifecycle"):
        if recording.sources[layer]["reason"]:
            problems.append(f"{layer} is off: {recording.sources[layer]['reason']}")
    if not report.watched:
        problems.append("the workload reported no quiet point")
    unended = [process.pid for process in recording.processes if process.state != "ended"]
    if unended:
        problems.append(f"processes {unended} have no end")
    return problems


def _peaks(row: Row, recording: Recording, report: Report, exact: Sequence[str]) -> list[str]:
    """No peak is below what was held at a point, and where the workload's peak is at one, none is above.

    `exact` are the layers whose figures are: between two points a workload only adds, or only removes.
    In the rmap layer each task of a process may have a page twice for a moment: see checks.REPLACED_PAGES.
    """
    problems = []
    for process in recording.processes:
        lived = [
            point
            for point in report.watched
            if point.pid == process.pid and process.seen_ns <= point.ns <= (process.end_ns or point.ns)
        ]
        if not lived:
            continue
        largest = max(point.rss for point in lived)
        at_peak = any(point.name in row.peak_at for point in lived)
        for layer, peak in ((RSS, process.peak), (RMAP, process.rmap_peak)):
            if layer not in exact or peak is None:
                continue
            replaced = REPLACED_PAGES * max(point.threads for point in lived) if layer == RMAP else 0
            pages = None if peak.rss_bytes is None else peak.rss_bytes // recording.page_size - largest
            if pages is None or pages < 0:
                problems.append(f"the {layer} peak of {process.pid} is {peak.rss_bytes} bytes, below a quiet point's")
            elif at_peak and pages > replaced:
                problems.append(f"the {layer} peak of {process.pid} is {pages:+} pages off the point it is at")
    return problems


def _rises(row: Row, comparison: Comparison, exact: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Between two points of a process nothing rises above both, but for what the row knows of.

    The counters have the arguments and the environment of a program while it is being executed: acct_arg_size() of
    fs/exec.c, whole pages from the top of the stack. As for _peaks, the rmap layer may have a page twice for each task.
    """
    if row.rises is None:
        return []
    problems = []
    environment_bytes = sum(len(os.fsencode(f"{name}={value}")) + 1 for name, value in variables.items())
    for rise in comparison.rises:
        if rise.layer not in exact:
            continue
        page_bytes, name = rise.point.page_bytes, rise.point.name
        allowed = row.rises.get(name, 0) // page_bytes
        if rise.layer == RMAP:
            allowed += REPLACED_PAGES * max(rise.before.threads, rise.point.threads)
        elif name in row.execs:
            allowed += -(-(environment_bytes + row.execs[name] + FEW_ARGUMENTS_BYTES) // page_bytes)
        if rise.pages > allowed:
            problems.append(f"{rise}; no more than {allowed:+} may be")
    return problems


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bpf.harness", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a workload, as the table names it")
    parser.add_argument("--all", action="store_true", help="all workloads")
    parser.add_argument("--rmap", action="store_true", help="the rmap layer as well")
    parser.add_argument("--real", action="store_true", help="all real programs")
    parser.add_argument("--list", action="store_true", help="list the workloads")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that settings are put back
    if options.list:
        print("\n".join(row.name for row in (*ROWS, *PROGRAMS)))
        return 0
    chosen = [row for row in ROWS if options.all or row.name in options.names]
    chosen += [row for row in PROGRAMS if options.real or row.name in options.names]
    unknown = set(options.names) - {row.name for row in (*ROWS, *PROGRAMS)}
    if unknown or not chosen:
        parser.error(f"no workload {', '.join(sorted(unknown)) or 'chosen'} (see --list)")
    built = build()
    failed = 0
    for row in chosen:
        outcome = run(row, built, rmap=options.rmap)
        print(outcome, flush=True)
        for problem in outcome.problems:
            print(f"    {problem}", flush=True)
        failed += outcome.failed
        reason = outcome.rmap_reason
    if options.rmap and reason:
        print(f"rmap is off: {reason}")
    print(f"{len(chosen)} workloads, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
