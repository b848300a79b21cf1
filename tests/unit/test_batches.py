"""Arrays say what the events say."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

import memtrack
from memtrack import batches, events
from memtrack.events import NATIVE, ByteOrder, EventType
from tests.unit.streams import ANON, MIB, Stream, recording

DATA = Path(__file__).resolve().parents[1] / "data"
ORDERS: tuple[ByteOrder, ...] = ("little", "big")


def one_of_each(order: ByteOrder) -> bytes:
    head = (77, 2**32 - 1, 5)
    every: list[events.Event] = [
        *(events.Alloc(kind, *head, 2**64 - 1, 9) for kind in (EventType.MALLOC, EventType.MMAP, EventType.BRK)),
        events.Realloc(EventType.REALLOC, *head, 1, 2**63, 3),
        events.Figure(EventType.RSS, *head, -1, 2**64 - 1),
        events.Figure(EventType.SYNC, *head, 3, 4096),
        events.Rmap(EventType.RMAP, *head, 1, -512, 2**48),
        events.Fork(EventType.FORK, *head, 2**32 - 2, 1),
        events.Exec(EventType.EXEC, *head, "sixteen bytes ok"),
        events.Exit(EventType.EXIT, *head, -9),
        events.Lost(EventType.LOST, *head, 2**64 - 1),
        events.Mark(EventType.MARK, *head, 2, "label"),
        events.Adopt(EventType.ADOPT, *head, "\udcff", 4),
        events.Told(EventType.PEAK, *head, 2, 3, 2**40, 2**50),
    ]
    return b"".join(events.encode(event, order) for event in every)


@pytest.mark.parametrize("order", ORDERS)
def test_every_field_of_every_type(order: ByteOrder) -> None:
    data = one_of_each(order)
    batch = batches.of_frame(data, batches.dtype(order))
    decoded = list(events.decode(data, order))
    assert len(batch) == len(decoded)
    for row, event in zip(batch, decoded, strict=True):
        assert (row["type"], row["time_ns"], row["pid"], row["tid"]) == event[:4]
        payload = row[type(event).__name__.lower()]
        assert payload.dtype.names == event._fields[4:]
        for name in payload.dtype.names:
            value = payload[name]
            assert (events.text_from_bytes(value) if isinstance(value, bytes) else value) == getattr(event, name), name


@pytest.mark.parametrize("order", ORDERS)
def test_batches_of_a_recording(order: ByteOrder) -> None:
    first, second = one_of_each(order), Stream(order).root(10, anon=MIB).rss(10, ANON, 2 * MIB).exit(10).data
    found = memtrack.open(io.BytesIO(recording(first, second, header={"byte_order": order})))
    assert [len(batch) for batch in found.batches()] == [len(first) // 48, len(second) // 48]
    assert b"".join(batch.tobytes() for batch in found.batches()) == first + second
    wanted = list(found.events(1_001_000, 1_005_000))
    assert 0 < len(wanted) < len(second) // 48
    cut = b"".join(batch.tobytes() for batch in found.batches(1_001_000, 1_005_000))
    assert cut == b"".join(events.encode(event, order) for event in wanted)


def test_of_the_golden_recordings() -> None:
    for path in DATA.glob("*.zst"):
        found = memtrack.open(path)
        kinds = numpy.concatenate([batch["type"] for batch in found.batches()])
        assert [int(kind) for kind in kinds] == [event.type for event in found.events()]


def test_they_are_the_callers_to_keep() -> None:
    found = memtrack.open(io.BytesIO(recording(*[Stream().rss(10, ANON, number).data for number in range(5)])))
    kept = list(found.batches())
    assert [int(batch["figure"]["size_bytes"][0]) for batch in kept] == [0, 1, 2, 3, 4]
    assert not kept[0].flags.writeable


def test_without_numpy_it_says_what_is_missing() -> None:
    code = f"""
import io, sys
sys.modules["numpy"] = None
import memtrack
found = memtrack.open(io.BytesIO({recording()!r}))
try:
    next(found.batches())
except memtrack.UsageError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "batches of events need numpy (pip install 'memtrack[numpy]')\n"


def test_reading_does_not_import_numpy() -> None:
    code = "import sys, memtrack; from memtrack import batches; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert batches.dtype(NATIVE).itemsize == 48
