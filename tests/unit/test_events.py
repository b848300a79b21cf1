"""The record's codec, against the C header that everyone else compiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cffi import FFI
from hypothesis import given, settings
from hypothesis import strategies as st

from memtrack import events
from memtrack.events import EventType, MarkKind, Member

HEADER = Path(__file__).resolve().parents[2] / "bpf" / "event.h"


@pytest.fixture(scope="module")
def header() -> FFI:
    """The header as cffi reads it; what the preprocessor would see is include guards only."""
    ffi = FFI()
    ffi.cdef("\n".join(line for line in HEADER.read_text().splitlines() if not line.startswith("#")))
    return ffi


def constants(ffi: FFI, enum: str) -> dict[str, int]:
    return {name: number for number, name in ffi.typeof(f"enum {enum}").elements.items()}


def test_a_record_is_48_bytes(header: FFI) -> None:
    assert header.sizeof("struct event") == events.RECORD_BYTES
    assert header.sizeof("struct event") == header.offsetof("struct event", "alloc") + 24


def test_types_are_those_of_the_header(header: FFI) -> None:
    assert constants(header, "event_type") == {f"EVENT_TYPE_{kind.name}": kind for kind in EventType}


def test_members_are_those_of_the_header(header: FFI) -> None:
    named = {f"EVENT_MEMBER_{member.name}": int(member) for member in Member}
    assert constants(header, "event_member") == {**named, "EVENT_MEMBERS": len(Member)}


def test_fork_flags_are_those_of_the_header(header: FFI) -> None:
    assert constants(header, "event_fork_flag") == {"EVENT_FORK_SHARES_MM": events.FORK_SHARES_MM}


# Every type with every byte of its payload different, and what each field of the header must then be.
BIG = 0x1112131415161718
EXAMPLES: list[tuple[events.Event, dict[str, Any]]] = [
    *(
        (events.Alloc(kind, BIG, 2, 3, BIG + 1, BIG + 2), {"alloc.addr": BIG + 1, "alloc.size": BIG + 2})
        for kind in (
            EventType.MALLOC,
            EventType.FREE,
            EventType.CALLOC,
            EventType.ALIGNED_ALLOC,
            EventType.MMAP,
            EventType.MUNMAP,
            EventType.BRK,
        )
    ),
    (
        events.Realloc(EventType.REALLOC, BIG, 2, 3, BIG + 1, BIG + 2, BIG + 3),
        {"realloc.old_addr": BIG + 1, "realloc.new_addr": BIG + 2, "realloc.size": BIG + 3},
    ),
    *(
        (events.Figure(kind, BIG, 2, 3, -7, BIG + 1), {"rss.member": -7, "rss.size_bytes": BIG + 1})
        for kind in (EventType.RSS, EventType.SYNC)
    ),
    (
        events.Rmap(EventType.RMAP, BIG, 2, 3, -7, -BIG, BIG + 1),
        {"rmap.member": -7, "rmap.delta_pages": -BIG, "rmap.addr": BIG + 1},
    ),
    (
        events.Fork(EventType.FORK, BIG, 2, 3, 0x01020304, 0x05060708),
        {"fork.parent_pid": 0x01020304, "fork.flags": 0x05060708},
    ),
    (events.Exec(EventType.EXEC, BIG, 2, 3, "0123456789abcdef"), {"exec.comm": b"0123456789abcdef"}),
    (events.Exit(EventType.EXIT, BIG, 2, 3, -77), {"exit.wait_status": -77}),
    (events.Lost(EventType.LOST, BIG, 2, 3, BIG + 1), {"lost.count": BIG + 1}),
    (
        events.Mark(EventType.MARK, BIG, 2, 3, MarkKind.END, "0123456789abcdefghij"),
        {"mark.kind": 2, "mark.label": b"0123456789abcdefghij"},
    ),
    (
        events.Adopt(EventType.ADOPT, BIG, 2, 3, "0123456789abcdef", 0x01020304),
        {"adopt.comm": b"0123456789abcdef", "adopt.parent_pid": 0x01020304},
    ),
    (
        events.Told(EventType.PEAK, BIG, 2, 3, -7, 0x01020304, BIG + 1, BIG + 2),
        {
            "peak.member": -7,
            "peak.processes": 0x01020304,
            "peak.size_bytes": BIG + 1,
            "peak.at_ns": BIG + 2,
        },
    ),
]


@pytest.mark.parametrize(("event", "fields"), EXAMPLES, ids=[EventType(event.type).name for event, _ in EXAMPLES])
def test_what_python_writes_c_reads(header: FFI, event: events.Event, fields: dict[str, Any]) -> None:
    record = events.encode(event, events.NATIVE)
    seen = header.from_buffer("struct event *", record)
    assert (seen.type, bytes(seen.zero), seen.time_ns, seen.pid, seen.tid) == (event.type, bytes(7), BIG, 2, 3)
    for path, expected in fields.items():
        union, field = path.split(".")
        value = getattr(getattr(seen, union), field)
        assert (header.buffer(value)[:] if isinstance(expected, bytes) else value) == expected


@pytest.mark.parametrize(("event", "fields"), EXAMPLES, ids=[EventType(event.type).name for event, _ in EXAMPLES])
def test_what_c_writes_python_reads(header: FFI, event: events.Event, fields: dict[str, Any]) -> None:
    written = header.new("struct event *", {"type": event.type, "time_ns": BIG, "pid": 2, "tid": 3})
    for path, value in fields.items():
        union, field = path.split(".")
        setattr(getattr(written, union), field, value)
    assert list(events.decode(header.buffer(written)[:], events.NATIVE)) == [event]


def test_every_type_has_an_example() -> None:
    assert {event.type for event, _ in EXAMPLES} == set(EventType)


def test_every_field_of_the_header_has_an_example(header: FFI) -> None:
    """A field that is added to the header and to no test fails here."""
    named = {
        f"{payload}.{field}"
        for payload, member in header.typeof("struct event").fields
        if member.type.kind == "struct"
        for field, _ in member.type.fields
        if field not in ("zero", "reserved")
    }
    assert named == {path for _, fields in EXAMPLES for path in fields}


def test_other_types_are_kept_as_they_are() -> None:
    event = events.Unknown(63, 5, 6, 7, bytes(range(24)))
    assert list(events.decode(events.encode(event))) == [event]


@pytest.mark.parametrize("order", ["little", "big"])
def test_byte_order_is_as_told(order: events.ByteOrder) -> None:
    event = events.Figure(EventType.RSS, 1, 2, 3, 1, 4096)
    record = events.encode(event, order)
    assert int.from_bytes(record[8:16], order) == 1
    assert int.from_bytes(record[32:40], order) == 4096
    assert list(events.decode(record, order)) == [event]


def numbers(bits: int, *, signed: bool = False) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) if signed else st.integers(0, (1 << bits) - 1)


@settings(deadline=None)
@given(numbers(64), numbers(32), numbers(32), numbers(32, signed=True), numbers(64, signed=True), numbers(64))
def test_numbers_of_any_size_survive(
    time_ns: int, pid: int, tid: int, member: int, delta_pages: int, addr: int
) -> None:
    event = events.Rmap(EventType.RMAP, time_ns, pid, tid, member, delta_pages, addr)
    assert list(events.decode(events.encode(event))) == [event]


@settings(deadline=None)
@given(st.binary(min_size=16, max_size=16))
def test_names_survive_as_bytes(raw: bytes) -> None:
    name = events.text_from_bytes(raw)
    assert events.bytes_from_text(name, 16) == raw.split(b"\0")[0]


@pytest.mark.parametrize(
    ("label", "kept"),
    [
        ("", b""),
        ("phase 2", b"phase 2"),
        ("x" * 20, b"x" * 20),
        ("x" * 21, b"x" * 20),
        ("x" * 19 + "é", b"x" * 19),  # no half a character
        ("ééééééééééé", "éééééééééé".encode()),
        ("a\0b", b"a"),
        ("\udcff" * 30, b"\xff" * 20),
    ],
)
def test_labels_are_cut_between_characters(label: str, kept: bytes) -> None:
    record = events.mark(1, 2, 3, MarkKind.INSTANT, label)
    assert record[28:48] == kept.ljust(20, b"\0")
    assert len(record) == events.RECORD_BYTES


def test_lost_counts_what_is_missing() -> None:
    (event,) = events.decode(events.lost(9, 1 << 40), events.NATIVE)
    assert event == events.Lost(EventType.LOST, 9, 0, 0, 1 << 40)


def test_the_contracts_numbers_never_change(header: FFI) -> None:
    """Types 1 to 13 are known to consumers outside; header and reader could change together."""
    names = [
        *("MALLOC", "FREE", "CALLOC", "REALLOC", "ALIGNED_ALLOC", "MMAP", "MUNMAP", "BRK"),
        *("RSS", "RMAP", "FORK", "EXEC", "EXIT"),
    ]
    assert [EventType(number).name for number in range(1, 14)] == names
    numbers = constants(header, "event_type")
    assert [numbers[f"EVENT_TYPE_{name}"] for name in names] == list(range(1, 14))
