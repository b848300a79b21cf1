"""The benchmarks run, and say what they measured; what that is they assert nowhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Of a line of a code block in our documents.
WIDTH = 120

pytestmark = [
    pytest.mark.bpf,
    pytest.mark.skipif("VMTEST_RESULTS" in os.environ, reason="guests have no compiler, and nothing to measure with"),
]


def test_one_round_of_a_workload(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks", "--only", "fork", "--rounds", "1", "--json", str(figures)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert max(map(len, done.stdout.splitlines())) <= WIDTH
    ((name, rows),) = json.loads(figures.read_text())["workloads"].items()
    assert name in done.stdout
    measured = {row["contender"]: row for row in rows if not row["absent"]}
    assert {"untraced", "untraced, again", "empty BPF programs", "memtrack", "memtrack --summary"} <= set(measured)
    assert measured["memtrack"]["events"] > measured["memtrack --summary"]["events"]
    assert measured["memtrack"]["rate"]["median"] > 0
    # The program beside the target reads what it holds at its end, by three kinds.
    assert measured["memtrack"]["figures"] == 3
