"""Feeds damaged recordings to the reader, the reducer and the report, and stops at the first that is not taken well.

    python -m tests.fuzz SECONDS [SEED]

A damaged recording may be refused (MemtrackError) or read in part. Anything else is a finding: another exception, more
memory than the limit below, more time than a reader may take. The file is then kept and named, with the seed.
"""

from __future__ import annotations

import io
import json
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import memtrack
from memtrack import events, report
from memtrack.events import EventType, Member
from memtrack.tracefile import Writer

ROOT = Path(__file__).resolve().parents[1]
FINDINGS = ROOT / "build" / "fuzz"

# The largest frame that a file may claim is 16 MiB; some copies of one and the interpreter are well within this.
MEMORY_BYTES = 1 << 30
# Seeds are read in milliseconds.
SECONDS_PER_INPUT = 20


def recording(rng: random.Random) -> bytes:
    """A sound recording of a tree that forks, runs, counts and ends, some of it twice or in an order that never was."""
    file = io.BytesIO()
    writer = Writer(file, {"page_size": 4096, "command": ["job", "\udcff"], "start_ns": 0, "clock_offset_ns": 1})
    time_ns = 1000
    for _ in range(rng.randint(0, 4)):
        records = []
        for _ in range(rng.randint(0, 60)):
            time_ns += rng.randint(-5, 1000)
            records.append(record(rng, max(0, time_ns)))
        writer.write_frame(b"".join(records))
    if rng.random() < 0.8:
        writer.finish({"events": {}, "lost_events": 0, "status": {"exit_code": 0, "signal": None}, "end_ns": time_ns})
    return file.getvalue()


def record(rng: random.Random, time_ns: int) -> bytes:
    head = (time_ns, rng.randint(1, 6), rng.randint(1, 6))
    member = rng.choice([*Member, rng.randint(-(2**31), 2**31 - 1)])
    size_bytes = rng.choice([0, 4096, 2**21, 2**40, 2**64 - 1])
    kind = rng.choice([*EventType, EventType.RSS, EventType.SYNC])
    event: events.Event
    if kind in (EventType.RSS, EventType.SYNC):
        event = events.Figure(kind, *head, member, size_bytes)
    elif kind == EventType.RMAP:
        event = events.Rmap(kind, *head, member, rng.choice([1, -1, 512, -512, 2**62]), 4096)
    elif kind == EventType.FORK:
        event = events.Fork(kind, *head, rng.randint(0, 6), rng.randint(0, 1))
    elif kind == EventType.EXEC:
        event = events.Exec(kind, *head, rng.choice(["job", "", "\udcff\udc80"]))
    elif kind == EventType.EXIT:
        event = events.Exit(kind, *head, rng.randint(-(2**31), 2**31 - 1))
    elif kind == EventType.LOST:
        event = events.Lost(kind, *head, rng.randint(0, 2**64 - 1))
    elif kind == EventType.ADOPT:
        event = events.Adopt(kind, *head, "job", rng.randint(0, 6))
    else:
        return rng.randbytes(events.RECORD_BYTES)
    return events.encode(event)


def flip(rng: random.Random, data: bytearray) -> None:
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def cut(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data)) :]


def leave_out(rng: random.Random, data: bytearray) -> None:
    start = rng.randrange(len(data))
    del data[start : start + rng.choice([1, 4, 48, 1000])]


def insert(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.choice([1, 4, 48, 1000]))


def repeat(rng: random.Random, data: bytearray) -> None:
    start = rng.randrange(len(data))
    at = rng.randrange(len(data) + 1)
    data[at:at] = data[start : start + rng.choice([8, 48, len(data)])]


def claim(rng: random.Random, data: bytearray) -> None:
    """Overwrite a number by one that is as large, as small or as odd as can be."""
    size = rng.choice([1, 2, 4, 8])
    value = rng.choice([0, 1, 2 ** (8 * size) - 1, 2 ** (8 * size - 1), rng.randrange(2 ** (8 * size))])
    at = rng.randrange(max(1, len(data) - size))
    data[at : at + size] = value.to_bytes(size, "little")


def reword(rng: random.Random, data: bytearray) -> None:
    """Put JSON of another type in the place of a value in the header or the trailer, of the same length."""
    texts = [b'"memtrack"', b"4096", b"null", b'"little"', b"48", b'"exit_code":0', b"{}", b"0", b"1"]
    old = rng.choice(texts)
    at = data.find(old)
    if at >= 0:
        new = rng.choice([b"[]", b"{}", b'""', b"-1", b"1e999", b"NaN", b"null", b"true", b"[[[[[["])
        data[at : at + len(old)] = new[: len(old)].ljust(len(old))


MUTATIONS: list[Callable[[random.Random, bytearray], None]] = [
    *(flip, cut, leave_out, insert, repeat, claim, reword),
]


def damage(rng: random.Random, data: bytes) -> bytes:
    damaged = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4])):
        if damaged:
            rng.choice(MUTATIONS)(rng, damaged)
    return bytes(damaged)


def read(path: Path) -> bool:
    """Whether the recording could be read, whole or in part."""
    try:
        found = memtrack.open(path)
        json.loads(json.dumps(report.to_json(found), allow_nan=False))
        report.to_text(found).encode("utf-8", "surrogateescape")
        for _ in found.events():
            pass
    except memtrack.MemtrackError as error:
        str(error)
        return False
    return True


def out_of_time(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"took more than {SECONDS_PER_INPUT} s")


def main(arguments: list[str]) -> int:
    seconds = float(arguments[0])
    seed = int(arguments[1]) if len(arguments) > 1 else random.randrange(2**32)
    rng = random.Random(seed)
    golden = [path.read_bytes() for path in sorted((ROOT / "tests" / "data").glob("*.zst"))]
    FINDINGS.mkdir(parents=True, exist_ok=True)
    path = FINDINGS / f"{seed}.zst"
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGALRM, out_of_time)
    end = time.monotonic() + seconds
    tried = taken = 0
    while time.monotonic() < end:
        data = recording(rng) if not golden or rng.random() < 0.8 else rng.choice(golden)
        path.write_bytes(damage(rng, data))
        tried += 1
        signal.alarm(SECONDS_PER_INPUT)
        try:
            taken += read(path)
        except Exception:
            traceback.print_exc()
            print(f"fuzz: seed {seed}, input {tried} is not taken well; it is kept in {path}", file=sys.stderr)
            return 1
        finally:
            signal.alarm(0)
    path.unlink()
    print(f"fuzz: seed {seed}, {tried} damaged recordings, {taken} read in part or whole, the others refused")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
