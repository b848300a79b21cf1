"""The command: ``python -m benchmarks [--quick]``, as root, in a checkout that has been built."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import consumer, figures, machine, programs, reading, reaped, rounds, table, truth
from benchmarks.contenders import CONTENDERS
from benchmarks.workloads import WORKLOADS

RESULTS = programs.BUILD / "results.json"

# Beside the workloads: how each is measured, and shown, and what is wrong with it that no machine explains.
_PARTS: dict[str, tuple[Callable[[bool], Any], Callable[[Any], str], Callable[[Any], list[str]]]] = {
    "processes": (reaped.measure, reaped.text, reaped.wrong),
    "consumer": (consumer.measure, consumer.text, consumer.wrong),
    "reading": (reading.measure, reading.text, lambda _: []),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds: under 2 minutes instead of 10")
    parser.add_argument("--only", metavar="WORD", help="only what has this word in its name")
    parser.add_argument("--rounds", type=int, metavar="N", help="so many rounds of each workload")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="where all figures go")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("recorders need root here")
    started = time.monotonic()
    results: dict[str, Any] = {"machine": machine.facts()}
    wrong: list[str] = []
    print(machine.text(results["machine"]), table.LEGEND, sep="\n")
    with machine.as_it_was(), machine.preferred():
        results["workloads"] = _recorders(arguments, wrong)
        for name, (measure, text, faults) in _PARTS.items():
            if _wanted(name, arguments):
                results[name] = measure(arguments.quick)
                print(text(results[name]), flush=True)
                wrong += faults(results[name])
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(results, indent=1))
    print(f"took {time.monotonic() - started:.0f} s; figures are in {os.path.relpath(arguments.json)}")
    for what in wrong:
        print(*textwrap.wrap(f"WRONG: {what}", table.WIDTH, subsequent_indent="  "), sep="\n")
    return 1 if wrong else 0


def _wanted(name: str, arguments: argparse.Namespace) -> bool:
    return not arguments.only or arguments.only in name


def _recorders(arguments: argparse.Namespace, wrong: list[str]) -> dict[str, Any]:
    results = {}
    for workload in WORKLOADS:
        if not _wanted(workload.name, arguments):
            continue
        if reason := workload.absent():
            print(f"{workload.name}\n  left out: {reason}\n")
            continue
        count = arguments.rounds or (workload.quick_rounds if arguments.quick else workload.rounds)
        found = figures.rows(rounds.run(workload, CONTENDERS, count, _progress()))
        print(table.text(workload, found), flush=True)
        results[workload.name] = found
        if truth.counters_are_exact():
            wrong += figures.wrong(found)
    return results


def _progress() -> Callable[[str], None]:
    """One line that is written over; nothing where nobody watches."""
    if not sys.stderr.isatty():
        return lambda _: None
    return lambda line: print(f"\r\033[K{line}", end="\r", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
