"""Feeds damaged recordings to the reader, the reducer and the report, and stops at the first that is not taken well.

    python -m tests.fuzz SECONDS [SEED]     recordings at random
    python -m tests.fuzz FILE...            these, a finding for example
    python -m tests.fuzz --keep SECONDS     and adds to tests/data/corpus whatever comes to something new there

A damaged recording may be refused (MemtrackError) or read in part. Anything else is a finding: another exception, more
memory than the limit below, more time than a reader may take, or two ways of reading that disagree. The file is then
kept and named, with the seed.
"""

from __future__ import annotations

import json
import random
import re
import resource
import signal
import sys
import time
import traceback
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType

import numpy  # loaded before memory is limited

import memtrack
from memtrack import events, report
from tests.damaged import damage, recording

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data"
CORPUS = DATA / "corpus"
FINDINGS = ROOT / "build" / "fuzz"

# The largest frame that a file may claim is 16 MiB; some copies of one and the interpreter are well within this.
MEMORY_BYTES = 1 << 30
# What is made here is read in milliseconds.
SECONDS_PER_INPUT = 20
CORPUS_BYTES = 150 << 10
# An input that tells something new is of use if it is small.
LARGEST_KEPT_BYTES = 1500


def read(path: Path) -> str:
    """What the recording comes to: why it is refused, or what is amiss with it, whatever the offsets and counts."""
    try:
        with memtrack.open(path) as found:
            shown = json.loads(json.dumps(report.to_json(found), allow_nan=False))
            report.to_text(found).encode("utf-8", "surrogateescape")
            assert shown["complete"] == (not shown["problems"])
            read_events(found)
            sentences = ["read", *found.problems]
    except memtrack.MemtrackError as error:
        sentences = ["refused", str(error)]
    kind, *why = [re.sub(r"\d+", "N", sentence.replace(str(path), "")) for sentence in sentences]
    return f"{kind}: {'; '.join(sorted(set(why)))}"


def read_events(found: memtrack.Recording) -> None:
    """One by one and as arrays, all of them and between two times, are the same."""
    every = list(found.events())
    assert sum(found.event_counts.values()) == len(every)
    assert times(found.batches()) == [event.time_ns for event in every]
    moments = sorted({event.time_ns for event in every})
    for from_ns, to_ns in spans(moments):
        some = list(found.events(from_ns, to_ns))
        assert times(found.batches(from_ns, to_ns)) == [event.time_ns for event in some]
        within = [
            event for event in every if (from_ns or 0) <= event.time_ns and (to_ns is None or event.time_ns < to_ns)
        ]
        # Times that are out of order by more than they may be can hide some.
        assert is_part(some, within)


def times(batches: Iterable[numpy.ndarray]) -> list[int]:
    return [int(time_ns) for batch in batches for time_ns in batch["time_ns"]]


def spans(moments: list[int]) -> Iterator[tuple[int | None, int | None]]:
    yield from [(-1, 0), (2**64, None), (5, 2)]
    if moments:
        middle = moments[len(moments) // 2]
        yield from [(middle, None), (None, middle), (moments[-1], moments[-1] + 1)]


def is_part(some: list[events.Event], of_all: list[events.Event]) -> bool:
    """Whether they are among those, in the same order."""
    rest = iter(of_all)
    return all(event in rest for event in some)


def out_of_time(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"took more than {SECONDS_PER_INPUT} s")


def limit() -> None:
    taken_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken_bytes + MEMORY_BYTES, taken_bytes + MEMORY_BYTES))
    signal.signal(signal.SIGALRM, out_of_time)


def taken_well(path: Path) -> str | None:
    """What it comes to; None, and a traceback, where it should not have."""
    signal.alarm(SECONDS_PER_INPUT)
    try:
        return read(path)
    except Exception:
        traceback.print_exc()
        return None
    finally:
        signal.alarm(0)


def at_random(rng: random.Random, sound: list[bytes]) -> bytes:
    data = recording(rng) if rng.random() < 0.8 else rng.choice(sound)
    return damage(rng, data) if rng.random() < 0.6 else data


def run(seconds: float, seed: int, *, keep: bool) -> int:
    rng = random.Random(seed)
    sound = [path.read_bytes() for path in (*sorted(DATA.glob("*.zst")), *corpus())]
    known = {outcome for path in corpus() if (outcome := taken_well(path))} if keep else set()
    FINDINGS.mkdir(parents=True, exist_ok=True)
    path = FINDINGS / f"{seed}.zst"
    end = time.monotonic() + seconds
    tried = taken = 0
    while time.monotonic() < end:
        path.write_bytes(at_random(rng, sound))
        tried += 1
        outcome = taken_well(path)
        if outcome is None:
            print(
                f"fuzz: seed {seed}, input {tried} is not taken well; it is kept in {path}\n"
                f"fuzz: python -m tests.fuzz {seconds:g} {seed} comes to it again, python -m tests.fuzz {path} at once",
                file=sys.stderr,
            )
            return 1
        taken += outcome.startswith("read")
        if keep and outcome not in known:
            known.add(outcome)
            keep_in_corpus(path.read_bytes(), outcome)
    path.unlink()
    print(f"fuzz: seed {seed}, {tried} damaged recordings, {taken} read in part or whole, the others refused")
    return 0


def corpus() -> list[Path]:
    return sorted(CORPUS.glob("*.zst"))


def keep_in_corpus(data: bytes, outcome: str) -> None:
    """Named by what it comes to: whether it is refused, and which of the outcomes that is."""
    size = sum(path.stat().st_size for path in corpus())
    # Without a zero it might be taken for a text.
    if len(data) <= LARGEST_KEPT_BYTES and size + len(data) <= CORPUS_BYTES and 0 in data:
        CORPUS.mkdir(exist_ok=True)
        (CORPUS / f"{outcome.partition(':')[0]}-{zlib.crc32(outcome.encode()):08x}.zst").write_bytes(data)


def main(arguments: list[str]) -> int:
    keep = arguments[0] == "--keep"
    arguments = arguments[keep:]
    limit()
    if not arguments[0].replace(".", "", 1).isdigit():
        outcomes = {name: taken_well(Path(name)) for name in arguments}
        for name, outcome in outcomes.items():
            print(f"{name}: {outcome or 'not taken well'}")
        return int(None in outcomes.values())
    seed = int(arguments[1]) if len(arguments) > 1 else random.randrange(2**32)
    return run(float(arguments[0]), seed, keep=keep)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
