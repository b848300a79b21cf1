"""A short run of the fuzzer with a fixed seed, so that it stays in order; `make fuzz` is the real one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_damaged_recordings_are_taken_well() -> None:
    # A process of its own, since it limits its memory.
    done = subprocess.run([sys.executable, "-m", "tests.fuzz", "3", "1"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
