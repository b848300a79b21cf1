"""Finds where a time starts in a recording, by its seek table, without reading what comes before.

The table has sizes only. So the frames are bisected by the time of their first record, for which a frame's first block
is decompressed. What the table says of a frame that is looked at is checked against the frame, and nothing else of it
is believed: where anything is amiss, the recording is to be read from its start.
"""

from __future__ import annotations

import sys
from array import array
from itertools import accumulate
from typing import BinaryIO, Final

import zstandard

from memtrack.container import (
    MAX_FRAME_BYTES,
    SEEK_ENTRY,
    SEEK_FOOTER,
    SEEK_FOOTER_MAGIC,
    SEEK_TABLE_MAGIC,
    SKIPPABLE_HEAD,
    ZSTD_MAGIC,
)
from memtrack.events import RECORD_BYTES, Buffer, ByteOrder
from memtrack.zstdframe import FrameError, measure

DISORDER_NS: Final = 100_000_000
"""How much later than what follows it a record may claim to be: its time is taken before its place in the ring, and a
virtual CPU can be held up in between."""

# Frames of 1 MiB in a recording of 1 TiB, or one a second for twelve days.
_MOST_ENTRIES: Final = 1 << 20
# What zstdframe.measure accepts.
_LARGEST_FRAME: Final = MAX_FRAME_BYTES + (MAX_FRAME_BYTES >> 7) + 2048
_TIME: Final = slice(8, 16)


class _AmissError(Exception):
    """The table is missing, or does not match what is there."""


def first_ns(records: Buffer, byte_order: ByteOrder) -> int:
    """The time of the first record."""
    return int.from_bytes(records[_TIME], byte_order)


def start_of(file: BinaryIO, byte_order: ByteOrder, from_ns: int) -> int | None:
    """The offset of a frame before which there is nothing of `from_ns` or later; None: read from the start.

    `file` is as long as the recording. Its position is left as it was.
    """
    try:
        position = file.tell()
        try:
            return _bisected(file, byte_order, from_ns - DISORDER_NS)
        finally:
            file.seek(position)
    except (OSError, ValueError, EOFError, FrameError, zstandard.ZstdError, _AmissError):
        return None


def _bisected(file: BinaryIO, byte_order: ByteOrder, time_ns: int) -> int | None:
    """The offset of the last frame that starts before `time_ns`."""
    sizes, contents = _table(file)
    offsets = array("Q", accumulate(sizes, initial=0))
    frames = array("I", (index for index, content_bytes in enumerate(contents) if content_bytes))
    # Frames before `low` start earlier, those from `high` on do not.
    low, high = 0, len(frames)
    while low < high:
        middle = (low + high) // 2
        index = frames[middle]
        if _first_ns(file, byte_order, offsets[index], sizes[index], contents[index]) < time_ns:
            low = middle + 1
        else:
            high = middle
    return offsets[frames[low - 1]] if low else None


def _table(file: BinaryIO) -> tuple[array[int], array[int]]:
    """Sizes of all frames, in the file and decompressed."""
    end = file.seek(0, 2)
    footer = _read(file, end - SEEK_FOOTER.size, SEEK_FOOTER.size)
    count, descriptor, magic = SEEK_FOOTER.unpack(footer)
    size_bytes = count * SEEK_ENTRY.size + SEEK_FOOTER.size
    start = end - size_bytes - SKIPPABLE_HEAD.size
    if (descriptor, magic) != (0, SEEK_FOOTER_MAGIC) or count > _MOST_ENTRIES or start < 0:
        raise _AmissError
    content = _read(file, start, SKIPPABLE_HEAD.size + size_bytes)
    entries = array("I", content[SKIPPABLE_HEAD.size : -SEEK_FOOTER.size])
    if sys.byteorder == "big":
        entries.byteswap()
    sizes, contents = entries[::2], entries[1::2]
    if SKIPPABLE_HEAD.unpack_from(content) != (SEEK_TABLE_MAGIC, size_bytes) or sum(sizes) != start:
        raise _AmissError
    return sizes, contents


def _first_ns(file: BinaryIO, byte_order: ByteOrder, offset: int, size_bytes: int, content_bytes: int) -> int:
    if size_bytes > _LARGEST_FRAME:
        raise _AmissError
    frame = _read(file, offset, size_bytes)

    def peek(offset: int, size: int) -> bytes:
        if offset + size > size_bytes:
            raise EOFError
        return frame[offset : offset + size]

    if int.from_bytes(frame[:4], "little") != ZSTD_MAGIC or measure(peek) != (size_bytes, content_bytes):
        raise _AmissError
    with zstandard.ZstdDecompressor().stream_reader(frame) as stream:
        record = stream.read(RECORD_BYTES)
    if len(record) != RECORD_BYTES:
        raise _AmissError
    return first_ns(record, byte_order)


def _read(file: BinaryIO, offset: int, size: int) -> bytes:
    if offset < 0:
        raise _AmissError
    file.seek(offset)
    data = file.read(size)
    if len(data) != size:
        raise _AmissError
    return data
