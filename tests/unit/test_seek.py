"""Events between two times are the same whether they are looked for by the seek table or not, whatever that says."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memtrack
from memtrack import container, events, seek
from memtrack.events import NATIVE, RECORD_BYTES, ByteOrder
from memtrack.reader import Reader
from tests.unit.streams import ANON, Stream, recording

SECOND = 1_000_000_000
PER_FRAME = 20


def frames(count: int, order: ByteOrder = NATIVE) -> list[bytes]:
    """One a second, each of records 50 ms apart, but now and then one of them is late by less than may be."""
    found = []
    for number in range(count):
        stream = Stream(order)
        for place in range(PER_FRAME):
            late = 90_000_000 if place % 7 == 0 else 0
            stream.now_ns = (number + 1) * SECOND + place * SECOND // PER_FRAME - late
            stream.rss(10, ANON, (number * PER_FRAME + place) * 4096)
        found.append(stream.data)
    return found


FRAMES = frames(40)
DATA = recording(*FRAMES)
ALL = list(events.decode(b"".join(FRAMES)))


def expected(from_ns: int | None, to_ns: int | None) -> list[events.Event]:
    low, high = -1 if from_ns is None else from_ns, 1 << 64 if to_ns is None else to_ns
    return [event for event in ALL if low <= event.time_ns < high]


def table_of(data: bytes) -> tuple[int, list[tuple[int, int]]]:
    """Where the table's skippable frame starts, and its entries."""
    count, _, _ = container.SEEK_FOOTER.unpack(data[-container.SEEK_FOOTER.size :])
    start = len(data) - container.SEEK_FOOTER.size - 8 * count - 8
    return start, list(container.SEEK_ENTRY.iter_unpack(data[start + 8 : -container.SEEK_FOOTER.size]))


def with_table(data: bytes, entries: list[tuple[int, int]]) -> bytes:
    start, _ = table_of(data)
    packed = b"".join(container.SEEK_ENTRY.pack(*entry) for entry in entries)
    footer = container.SEEK_FOOTER.pack(len(entries), 0, container.SEEK_FOOTER_MAGIC)
    return data[:start] + container.skippable(container.SEEK_TABLE_MAGIC, packed + footer)


TIMES = st.one_of(st.none(), st.integers(0, 45 * SECOND), st.integers(0, 45).map(lambda number: number * SECOND))


@settings(deadline=None, max_examples=200)
@given(TIMES, TIMES)
def test_between_two_times(from_ns: int | None, to_ns: int | None) -> None:
    assert list(memtrack.open(io.BytesIO(DATA)).events(from_ns, to_ns)) == expected(from_ns, to_ns)


@pytest.mark.parametrize("to_ns", [None, 31 * SECOND])
def test_little_else_is_read(to_ns: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = memtrack.open(io.BytesIO(DATA))
    decompressed = []
    real = Reader._decompress

    def counted(self: Reader, size_bytes: int, into: memoryview) -> bool:
        decompressed.append(size_bytes)
        return real(self, size_bytes, into)

    monkeypatch.setattr(Reader, "_decompress", counted)
    assert list(found.events(30 * SECOND, to_ns)) == expected(30 * SECOND, to_ns)
    assert len(decompressed) == (12 if to_ns is None else 4)  # of 40; one tells that there is no more


def test_a_path_and_a_foreign_byte_order(tmp_path: Path) -> None:
    other: ByteOrder = "big" if NATIVE == "little" else "little"
    path = tmp_path / "run.zst"
    path.write_bytes(recording(*frames(40, other), header={"byte_order": other}))
    assert list(memtrack.open(path).events(17 * SECOND, 18 * SECOND)) == expected(17 * SECOND, 18 * SECOND)


def test_the_start_is_the_last_frame_that_may_be_it() -> None:
    file = io.BytesIO(DATA)
    file.seek(77)
    starts = [0]
    for size, _ in table_of(DATA)[1]:
        starts.append(starts[-1] + size)
    assert seek.start_of(file, NATIVE, 0) is None
    assert seek.start_of(file, NATIVE, 20 * SECOND) == starts[19]
    assert seek.start_of(file, NATIVE, 60 * SECOND) == starts[40]
    assert file.tell() == 77


def lies() -> Iterator[tuple[str, bytes]]:
    start, table = table_of(DATA)
    header, *rest = table
    trailer = rest.pop()
    yield "none", DATA[:start]
    yield "cut", DATA[:-1]
    yield "no trailer", DATA[: start - trailer[0]]
    yield "something behind", DATA + b"x"
    yield "no entries", with_table(DATA, [])
    yield "one entry", with_table(DATA, [(start, 48)])
    yield (
        "shifted",
        with_table(DATA, [header, (rest[0][0] + 1, rest[0][1]), *rest[1:-1], (rest[-1][0] - 1, 960), trailer]),
    )
    yield (
        "all content in one",
        with_table(DATA, [header, (sum(size for size, _ in rest), 48 * PER_FRAME * 40), trailer]),
    )
    yield "hidden", with_table(DATA, [header, *rest[:5], (sum(size for size, _ in rest[5:30]), 0), *rest[30:], trailer])
    yield "other content", with_table(DATA, [header, *((size, content + 48) for size, content in rest), trailer])
    yield "larger than may be", with_table(DATA, [header, *((0xFFFFFFFF, 960) for _ in rest), trailer])
    yield "backwards", with_table(DATA, [trailer, *reversed(rest), header])
    yield "checksums", DATA[:-5] + b"\x80" + DATA[-4:]
    yield "4 G entries", DATA[:-9] + b"\xff" * 4 + DATA[-5:]
    yield "another size", DATA[: start + 4] + b"\0\0\0\0" + DATA[start + 8 :]


LIES = dict(lies())


@pytest.mark.parametrize("name", LIES)
def test_tables_that_lie(name: str) -> None:
    found = memtrack.open(io.BytesIO(LIES[name]))
    for second in range(0, 43, 3):
        from_ns, to_ns = second * SECOND, (second + 2) * SECOND
        assert list(found.events(from_ns, to_ns)) == expected(from_ns, to_ns), (name, second)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.tuples(st.integers(0, 41), st.integers(0, 41), st.integers(-2000, 2000), st.booleans()), max_size=4),
    st.integers(0, 42),
)
def test_any_table(moves: list[tuple[int, int, int, bool]], second: int) -> None:
    """Bytes move from one entry to another, so that the sum remains, and some claim to have no content."""
    _, entries = table_of(DATA)
    sizes, contents = [list(column) for column in zip(*entries, strict=True)]
    for taken, given_to, size, hidden in moves:
        size = max(-sizes[given_to], min(size, sizes[taken]))
        sizes[taken] -= size
        sizes[given_to] += size
        contents[taken] = 0 if hidden else contents[taken]
    found = memtrack.open(io.BytesIO(with_table(DATA, list(zip(sizes, contents, strict=True)))))
    from_ns, to_ns = second * SECOND, (second + 1) * SECOND
    assert list(found.events(from_ns, to_ns)) == expected(from_ns, to_ns)


def test_damaged_frames_are_left_out() -> None:
    _, table = table_of(DATA)
    data = bytearray(DATA)
    at = sum(size for size, _ in table[:25])
    data[at + 60] ^= 1
    found = memtrack.open(io.BytesIO(data))
    events_left = [event for event in found.events(20 * SECOND, 35 * SECOND) if isinstance(event, events.Figure)]
    assert len(events_left) == len(expected(20 * SECOND, 35 * SECOND)) - PER_FRAME


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="no /dev/fd")
def test_a_pipe_is_read_from_its_start() -> None:
    readable, writable = os.pipe()
    os.write(writable, DATA)
    os.close(writable)
    try:
        with Reader(f"/dev/fd/{readable}") as reader:
            reader.seek(20 * SECOND)
            assert len(list(reader.frames())) == 40
        assert reader.complete
    finally:
        os.close(readable)


def test_a_record_of_each_frame_is_enough() -> None:
    assert all(len(frame) == PER_FRAME * RECORD_BYTES for frame in FRAMES)
    assert len(DATA) < 1 << 16  # fits a pipe
