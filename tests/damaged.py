"""Recordings at random, spoiled at each step of their making: records, metadata, the seek table, and the whole file.

What is spoiled before it is compressed and gets its checksum is not found by that, and reaches what comes behind.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import zstandard

from memtrack import container, events
from memtrack.events import ByteOrder, EventType, MarkKind, Member

COMMS = ["job", "", "\udcff\udc80", "fifteen letters", "\x1b[31m\n"]
SIZES = [0, 4096, 2**21, 2**40, 2**63, 2**64 - 1]
HOOKS = {"rss": ("tier", "hook", "reason"), "rmap": ("tier", "hooks", "reason"), "lifecycle": ("hooks", "reason")}
STRANGE: list[Any] = [None, True, -1, 0, 1, 10**30, 1.5, "x", "\udcff", [], [1], {}, {"rss": 1}, [[[[]]]], 2**63]


def recording(rng: random.Random) -> bytes:
    """A tree that forks, runs, counts and ends, some of it twice or in an order that never was."""
    order: ByteOrder = rng.choice(["little", "little", "big"])
    time_ns = 1000
    frames = []
    for _ in range(rng.randint(0, 4)):
        records = bytearray()
        for _ in range(rng.randint(1, 60)):
            time_ns = max(0, time_ns + rng.choice([rng.randint(-5, 1000), 10**8, -(10**6)]))
            records += record(rng, time_ns, order)
        if rng.random() < 0.3:
            spoil_records(rng, records)
        frames.append(bytes(records))
    parts = [(container.skippable(container.HEADER_MAGIC, metadata(rng, header(rng, order))), 0)]
    parts += [(compressed(frame), len(frame)) for frame in frames]
    if rng.random() < 0.9:
        trailer = {"events": {}, "lost_events": rng.choice([0, 0, 7, 2**64]), "end_ns": time_ns, **end(rng)}
        parts.append((container.skippable(container.TRAILER_MAGIC, metadata(rng, trailer)), 0))
    data = b"".join(part for part, _ in parts)
    return data + seek_table(rng, parts) if rng.random() < 0.95 else data


def header(rng: random.Random, order: ByteOrder) -> dict[str, Any]:
    quantity = rng.choice([None, None, 0, 1, 65536, 2**63])
    every = rng.random() < 0.5
    sources = {
        layer: {name: rng.choice([None, "folio", ["tp_btf/rss_stat"], "not asked for"]) for name in names}
        for layer, names in HOOKS.items()
    }
    return {
        "format": "memtrack",
        "version": 1,
        "event_size": events.RECORD_BYTES,
        "byte_order": order,
        "page_size": rng.choice([4096, 4096, 65536]),
        "start_ns": rng.choice([0, 1000]),
        "clock_offset_ns": 1,
        "command": ["job", rng.choice(COMMS)],
        "detail": {
            "events": rng.random() < 0.8,
            "resolution_bytes": None if every else quantity,
            "resolution_ns": None if every or quantity else 1_000_000,
        },
        "sources": sources,
    }


def end(rng: random.Random) -> dict[str, Any]:
    return {
        "status": {"exit_code": rng.choice([0, 1, None]), "signal": rng.choice([None, None, 9])},
        "losses": {"ring": rng.choice([0, 7]), rng.choice(["headroom", "\udcff"]): rng.choice([0, 2**63])},
        "processes_left": rng.choice([0, 3]),
        "problems": rng.choice([[], [], ["something is missing"]]),
        "doubts": rng.choice([[], ["something may be off"]]),
    }


def metadata(rng: random.Random, members: dict[str, Any]) -> bytes:
    """With its checksum; now and then with a member that is not what it should be, at any depth, or none."""
    if rng.random() < 0.3:
        inner = [members, *(value for value in members.values() if isinstance(value, dict))]
        spoiled = rng.choice([each for each in inner if each])
        name = rng.choice(list(spoiled))
        if rng.random() < 0.2:
            del spoiled[name]
        else:
            spoiled[name] = rng.choice(STRANGE)
    return container.pack_metadata(members)


def compressed(frame: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True, write_content_size=True).compress(frame)


def seek_table(rng: random.Random, parts: list[tuple[bytes, int]]) -> bytes:
    """What is claimed sums up, or the first look would tell."""
    sizes, contents = [len(part) for part, _ in parts], [content for _, content in parts]
    if rng.random() < 0.3:
        one, other = rng.randrange(len(parts)), rng.randrange(len(parts))
        moved = rng.randint(0, sizes[one])
        sizes[one] -= moved
        sizes[other] += moved
        contents[rng.randrange(len(parts))] = rng.choice([0, 48, 2**32 - 1, contents[one]])
    entries = b"".join(container.SEEK_ENTRY.pack(*entry) for entry in zip(sizes, contents, strict=True))
    footer = container.SEEK_FOOTER.pack(len(parts), 0, container.SEEK_FOOTER_MAGIC)
    return container.skippable(container.SEEK_TABLE_MAGIC, entries + footer)


def record(rng: random.Random, time_ns: int, order: ByteOrder) -> bytes:
    head = (time_ns, rng.randint(1, 6), rng.randint(1, 6))
    member = rng.choice([*Member, *Member, rng.randint(-(2**31), 2**31 - 1)])
    kind = rng.choice([*EventType, EventType.RSS, EventType.SYNC])
    event: events.Event
    if kind in (EventType.RSS, EventType.SYNC):
        event = events.Figure(kind, *head, member, rng.choice(SIZES))
    elif kind == EventType.RMAP:
        event = events.Rmap(kind, *head, member, rng.choice([1, -1, 512, -512, 2**62]), rng.choice([0, 4096]))
    elif kind == EventType.FORK:
        event = events.Fork(kind, *head, rng.randint(0, 6), rng.randint(0, 1))
    elif kind == EventType.EXEC:
        event = events.Exec(kind, *head, rng.choice(COMMS))
    elif kind == EventType.EXIT:
        event = events.Exit(kind, *head, rng.choice([0, 9, 256, rng.randint(-(2**31), 2**31 - 1)]))
    elif kind == EventType.LOST:
        event = events.Lost(kind, *head, rng.choice([0, 1, 2**64 - 1]))
    elif kind == EventType.MARK:
        event = events.Mark(kind, *head, rng.choice([*MarkKind, 2**32 - 1]), rng.choice([*COMMS, "å" * 10]))
    elif kind == EventType.ADOPT:
        event = events.Adopt(kind, *head, rng.choice(COMMS), rng.randint(0, 6))
    elif kind == EventType.PEAK:
        return b"".join(
            events.encode(
                events.Told(kind, time_ns, pid, 1, each, rng.randint(0, 6), rng.choice(SIZES), time_ns // 2), order
            )
            for pid in [rng.randint(0, 6)]
            for each in rng.choice([list(Member), [member]])
        )
    elif kind == EventType.REALLOC:
        event = events.Realloc(kind, *head, 4096, 8192, rng.choice(SIZES))
    else:
        event = events.Alloc(kind, *head, 4096, rng.choice(SIZES))
    return events.encode(event, order)


def spoil_records(rng: random.Random, records: bytearray) -> None:
    """Bits and numbers, and whole records; they stay whole in number."""
    for _ in range(rng.choice([1, 1, 8])):
        rng.choice([flip, claim])(rng, records)
    at = rng.randrange(len(records) // events.RECORD_BYTES) * events.RECORD_BYTES
    one = records[at : at + events.RECORD_BYTES]
    match rng.randrange(4):
        case 0 if len(records) > events.RECORD_BYTES:
            del records[at : at + events.RECORD_BYTES]
        case 1:
            records[at:at] = one * rng.choice([1, 300])
        case 2:
            records += one
        case _:
            records[at : at + events.RECORD_BYTES] = rng.randbytes(events.RECORD_BYTES)


def flip(rng: random.Random, data: bytearray) -> None:
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def cut(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data)) :]


def cut_and_made_up_with_zeros(rng: random.Random, data: bytearray) -> None:
    size = rng.randrange(len(data))
    data[size:] = bytes(rng.choice([len(data) - size, 4096]))


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
    size = min(rng.choice([1, 2, 4, 8]), len(data))
    value = rng.choice([0, 1, 2 ** (8 * size) - 1, 2 ** (8 * size - 1), rng.randrange(2 ** (8 * size))])
    at = rng.randrange(len(data) - size + 1)
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
    *(flip, cut, cut_and_made_up_with_zeros, leave_out, insert, repeat, claim, reword),
]


def damage(rng: random.Random, data: bytes) -> bytes:
    damaged = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4])):
        if damaged:
            rng.choice(MUTATIONS)(rng, damaged)
    return bytes(damaged)
