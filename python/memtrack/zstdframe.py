"""How long a zstd frame is and what it claims, from its headers alone (RFC 8878, section 3.1.1).

libzstd's own calls want the whole frame, or allocate what it claims, before they tell.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from memtrack.container import MAX_FRAME_BYTES
from memtrack.events import RECORD_BYTES

_MAGIC_BYTES: Final = 4
_CHECKSUM_BYTES: Final = 4
_BLOCK_HEAD_BYTES: Final = 3
_MAX_BLOCK_BYTES: Final = 128 << 10
_BLOCK_RLE: Final = 1
_BLOCK_RESERVED: Final = 3


class FrameError(Exception):
    """What is there is nothing that a writer of ours makes; says why, and its size where that may be right."""

    def __init__(self, why: str, size_bytes: int = 0) -> None:
        super().__init__(why)
        self.size_bytes = size_bytes


class Frame(NamedTuple):
    """A frame whose headers make sense. What is in its blocks is not known yet."""

    size_bytes: int
    content_bytes: int


class Peek(Protocol):
    """Bytes from the start of the frame on; raises EOFError when the file has fewer."""

    def __call__(self, offset: int, size: int) -> bytes: ...


def measure(peek: Peek) -> Frame:
    """Walks the headers. Raises FrameError, and EOFError where the file ends inside the frame."""
    content_bytes, window_bytes, offset = _frame_header(peek)
    # No writer makes a frame larger than its content but for the headers; one that does (empty blocks without end)
    # would have to be held in memory.
    limit = content_bytes + (content_bytes >> 7) + 1024
    blocks_left = content_bytes // RECORD_BYTES + 1
    last = False
    while not last:
        if not blocks_left:
            raise FrameError("it has more blocks than records")
        blocks_left -= 1
        head = int.from_bytes(peek(offset, _BLOCK_HEAD_BYTES), "little")
        last, kind, size = bool(head & 1), head >> 1 & 3, head >> 3
        if kind == _BLOCK_RESERVED:
            raise FrameError("it has a block of no known type")
        if size > min(window_bytes, _MAX_BLOCK_BYTES):
            raise FrameError("it has a block larger than a block may be")
        offset += _BLOCK_HEAD_BYTES + (1 if kind == _BLOCK_RLE else size)
        if offset > limit:
            raise FrameError("its blocks are larger than their content")
    size_bytes = offset + _CHECKSUM_BYTES
    peek(size_bytes - 1, 1)
    return Frame(size_bytes, content_bytes)


def _frame_header(peek: Peek) -> tuple[int, int, int]:
    """Content size, window size, and where the first block starts."""
    offset = _MAGIC_BYTES
    descriptor = peek(offset, 1)[0]
    offset += 1
    single_segment = bool(descriptor & 0x20)
    if descriptor & 0x08:
        raise FrameError("its header has a reserved bit set")
    if not descriptor & 0x04:
        raise FrameError("it has no checksum")
    if descriptor & 0x03:
        raise FrameError("it wants a dictionary")
    window_bytes = 0
    if not single_segment:
        window = peek(offset, 1)[0]
        offset += 1
        base = 1 << (10 + (window >> 3))
        window_bytes = base + (base >> 3) * (window & 7)
    size_bytes = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    if not size_bytes:
        raise FrameError("it has no content size")
    content_bytes = int.from_bytes(peek(offset, size_bytes), "little") + (256 if size_bytes == 2 else 0)
    offset += size_bytes
    if single_segment:
        window_bytes = content_bytes
    if content_bytes > MAX_FRAME_BYTES or window_bytes > MAX_FRAME_BYTES:
        claimed = max(content_bytes, window_bytes)
        raise FrameError(f"it claims to need {claimed} bytes, more than the {MAX_FRAME_BYTES} that are accepted")
    if content_bytes == 0 or content_bytes % RECORD_BYTES:
        raise FrameError(f"it claims {content_bytes} bytes, which are not whole records of {RECORD_BYTES}")
    return content_bytes, window_bytes, offset
