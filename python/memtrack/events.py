"""The event record: 48 bytes, the Python reading of bpf/event.h.

Types 1 to 13 and their payloads are a contract with existing consumers and never change; memtrack's own start at 64.
A consumer skips the types it does not know.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, Literal, NamedTuple, TypeAlias

ByteOrder: TypeAlias = Literal["little", "big"]
Buffer: TypeAlias = bytes | bytearray | memoryview

RECORD_BYTES: Final = 48
COMM_BYTES: Final = 16
LABEL_BYTES: Final = 20
FORK_SHARES_MM: Final = 1


class EventType(IntEnum):
    """Byte 0 of a record."""

    MALLOC = 1
    FREE = 2
    CALLOC = 3
    REALLOC = 4
    ALIGNED_ALLOC = 5
    MMAP = 6
    MUNMAP = 7
    BRK = 8
    RSS = 9
    RMAP = 10
    FORK = 11
    EXEC = 12
    EXIT = 13
    SYNC = 64
    LOST = 65
    MARK = 66
    ADOPT = 67
    PEAK = 68


class Member(IntEnum):
    """The kernel's numbering of an address space's counters (MM_FILEPAGES and on)."""

    FILE = 0
    ANON = 1
    SWAP = 2
    SHMEM = 3


class MarkKind(IntEnum):
    """What a label stands at."""

    INSTANT = 0
    BEGIN = 1
    END = 2


class Alloc(NamedTuple):
    """MALLOC, CALLOC, ALIGNED_ALLOC, MMAP, MUNMAP, BRK, and FREE (whose size is 0)."""

    type: EventType
    time_ns: int
    pid: int
    tid: int
    addr: int
    size_bytes: int


class Realloc(NamedTuple):
    """REALLOC."""

    type: EventType
    time_ns: int
    pid: int
    tid: int
    old_addr: int
    new_addr: int
    size_bytes: int


class Figure(NamedTuple):
    """RSS and SYNC: the absolute size of one member. `member` may be a number that this version does not know."""

    type: EventType
    time_ns: int
    pid: int
    tid: int
    member: int
    size_bytes: int


class Rmap(NamedTuple):
    """RMAP: pages mapped or unmapped at an address (0 where the hook has none)."""

    type: EventType
    time_ns: int
    pid: int
    tid: int
    member: int
    delta_pages: int
    addr: int


class Fork(NamedTuple):
    """FORK: `pid` is the child. `flags` has FORK_SHARES_MM where nothing was copied."""

    type: EventType
    time_ns: int
    pid: int
    tid: int
    parent_pid: int
    flags: int


class Exec(NamedTuple):
    """EXEC: the address space was replaced."""

    type: EventType
    time_ns: int
    pid: int
    tid: int
    comm: str


class Exit(NamedTuple):
    """EXIT: the thread group ended, with a status as wait(2) gives it."""

    type: EventType
    time_ns: int
    pid: int
    tid: int
    wait_status: int


class Lost(NamedTuple):
    """LOST: how many events are missing before this one; 0 where the number is not known (a damaged frame)."""

    type: EventType
    time_ns: int
    pid: int
    tid: int
    lost_events: int


class Mark(NamedTuple):
    """MARK: a label put there by whoever records."""

    type: EventType
    time_ns: int
    pid: int
    tid: int
    kind: int
    label: str


class Adopt(NamedTuple):
    """ADOPT: a process that already ran and is followed from here on."""

    type: EventType
    time_ns: int
    pid: int
    tid: int
    comm: str
    parent_pid: int


class Told(NamedTuple):
    """PEAK: one member's part of the largest sum so far, as the kernel side kept it; pid 0 is the tree.

    `at_ns` is when that sum was, and `processes` how many lived then (0 in a process's own).
    """

    type: EventType
    time_ns: int
    pid: int
    tid: int
    member: int
    processes: int
    size_bytes: int
    at_ns: int


class Unknown(NamedTuple):
    """A type this version does not know, payload as it is."""

    type: int
    time_ns: int
    pid: int
    tid: int
    payload: bytes


Event: TypeAlias = Alloc | Realloc | Figure | Rmap | Fork | Exec | Exit | Lost | Mark | Adopt | Told | Unknown

# Offsets and types after the 24 bytes that all records share; checked against bpf/event.h by tests/unit/test_events.py.
_HEAD: Final = "B7xQII"
_PAYLOADS: Final[dict[EventType, str]] = {
    EventType.MALLOC: "QQ8x",
    EventType.FREE: "QQ8x",
    EventType.CALLOC: "QQ8x",
    EventType.REALLOC: "QQQ",
    EventType.ALIGNED_ALLOC: "QQ8x",
    EventType.MMAP: "QQ8x",
    EventType.MUNMAP: "QQ8x",
    EventType.BRK: "QQ8x",
    EventType.RSS: "i4xQ8x",
    EventType.RMAP: "i4xqQ",
    EventType.FORK: "II16x",
    EventType.EXEC: "16s8x",
    EventType.EXIT: "i20x",
    EventType.SYNC: "i4xQ8x",
    EventType.LOST: "Q16x",
    EventType.MARK: "I20s",
    EventType.ADOPT: "16sI4x",
    EventType.PEAK: "iIQQ",
}


def _structs(order: str) -> dict[int, struct.Struct]:
    return {int(kind): struct.Struct(order + _HEAD + payload) for kind, payload in _PAYLOADS.items()}


_STRUCTS: Final[dict[ByteOrder, dict[int, struct.Struct]]] = {"little": _structs("<"), "big": _structs(">")}
NATIVE: Final[ByteOrder] = "little" if sys.byteorder == "little" else "big"
_UNKNOWN: Final[dict[ByteOrder, struct.Struct]] = {
    "little": struct.Struct("<" + _HEAD + "24s"),
    "big": struct.Struct(">" + _HEAD + "24s"),
}


def text_from_bytes(raw: bytes) -> str:
    """A NUL-padded name from the kernel; bytes that are not UTF-8 survive as surrogates, as os.fsdecode keeps them."""
    return raw.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def bytes_from_text(text: str, size: int) -> bytes:
    """The inverse of text_from_bytes, cut between characters to at most `size` bytes."""
    text = text.split("\0", 1)[0][:size]
    while len(raw := text.encode("utf-8", "surrogateescape")) > size:
        text = text[:-1]
    return raw


def decode(buffer: Buffer, byte_order: ByteOrder = "little") -> Iterator[Event]:
    """The records of a buffer whose length is a multiple of RECORD_BYTES, in order."""
    structs, unknown = _STRUCTS[byte_order], _UNKNOWN[byte_order]
    view = memoryview(buffer).cast("B")
    for offset in range(0, len(view), RECORD_BYTES):
        layout = structs.get(view[offset])
        if layout is None:
            yield Unknown(*unknown.unpack_from(view, offset))
        else:
            yield _build(*layout.unpack_from(view, offset))


def _build(kind: int, time_ns: int, pid: int, tid: int, *payload: int | bytes) -> Event:
    name = EventType(kind)
    values = [text_from_bytes(value) if isinstance(value, bytes) else value for value in payload]
    return _CLASSES[name]._make((name, time_ns, pid, tid, *values))


_KnownClass: TypeAlias = (
    type[Alloc]
    | type[Realloc]
    | type[Figure]
    | type[Rmap]
    | type[Fork]
    | type[Exec]
    | type[Exit]
    | type[Lost]
    | type[Mark]
    | type[Adopt]
    | type[Told]
)
_CLASSES: Final[dict[EventType, _KnownClass]] = {
    EventType.MALLOC: Alloc,
    EventType.FREE: Alloc,
    EventType.CALLOC: Alloc,
    EventType.REALLOC: Realloc,
    EventType.ALIGNED_ALLOC: Alloc,
    EventType.MMAP: Alloc,
    EventType.MUNMAP: Alloc,
    EventType.BRK: Alloc,
    EventType.RSS: Figure,
    EventType.RMAP: Rmap,
    EventType.FORK: Fork,
    EventType.EXEC: Exec,
    EventType.EXIT: Exit,
    EventType.SYNC: Figure,
    EventType.LOST: Lost,
    EventType.MARK: Mark,
    EventType.ADOPT: Adopt,
    EventType.PEAK: Told,
}


def encode(event: Event, byte_order: ByteOrder = "little") -> bytes:
    """One record; the inverse of decode."""
    if isinstance(event, Unknown):
        return _UNKNOWN[byte_order].pack(*event)
    kind, time_ns, pid, tid, *payload = event
    size = LABEL_BYTES if isinstance(event, Mark) else COMM_BYTES
    values = [bytes_from_text(value, size) if isinstance(value, str) else value for value in payload]
    return _STRUCTS[byte_order][int(kind)].pack(kind, time_ns, pid, tid, *values)


def lost(time_ns: int, lost_events: int) -> bytes:
    """A LOST record in this machine's byte order."""
    return encode(Lost(EventType.LOST, time_ns, 0, 0, lost_events), NATIVE)


def peak(time_ns: int, member: int, size_bytes: int, at_ns: int, processes: int) -> bytes:
    """One member of the tree's PEAK in this machine's byte order."""
    return encode(Told(EventType.PEAK, time_ns, 0, 0, member, processes, size_bytes, at_ns), NATIVE)


def mark(time_ns: int, pid: int, tid: int, kind: MarkKind, label: str) -> bytes:
    """A MARK record in this machine's byte order."""
    return encode(Mark(EventType.MARK, time_ns, pid, tid, kind, label), NATIVE)
