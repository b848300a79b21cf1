"""What the fuzzer found new at some time, once more, and a short run of it; `make fuzz` is the long one."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fuzz

ROOT = Path(__file__).resolve().parents[2]
SECONDS = "5"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own, since it limits its memory."""
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_damaged_recordings_are_taken_well() -> None:
    # Another one each time: what fails names it, and how to repeat it.
    done = run(SECONDS, str(random.randrange(1 << 32)))
    assert done.returncode == 0, done.stderr


def test_the_same_seed_makes_the_same_recordings() -> None:
    one, other = (
        [fuzz.at_random(rng, [b"sound"]) for _ in range(50)] for rng in (random.Random(seed) for seed in (7, 7))
    )
    assert one == other


def test_the_corpus_is_taken_as_it_was() -> None:
    """Its files are named by what they came to when they were kept; a finding, by what it should have."""
    files = fuzz.corpus()
    assert {path.name.partition("-")[0] for path in files} == {"read", "refused"}
    done = run(*files)
    assert done.returncode == 0, done.stderr
    outcomes = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert len(outcomes) == len(files)
    for path in files:
        assert path.name.startswith(outcomes[os.fspath(path)].partition(":")[0]), path.name


def test_the_corpus_is_small() -> None:
    assert sum(path.stat().st_size for path in fuzz.corpus()) <= fuzz.CORPUS_BYTES


@pytest.mark.parametrize("data", [b"", b"hello\0"], ids=["empty", "no recording"])
def test_what_is_refused_is_taken_well(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "r").write_bytes(data)
    assert fuzz.read(tmp_path / "r").startswith("refused: cannot read ")
