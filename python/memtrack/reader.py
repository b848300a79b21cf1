"""Reads recordings: whole frames only, whatever the file claims, and says what is missing.

A recording is read forwards, so it may come through a pipe. About one frame of it is in memory at a time, as it is in
the file and as it was before.
"""

from __future__ import annotations

import errno
import os
import re
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO, Final

import zstandard

from memtrack import seek
from memtrack.container import (
    HEADER_MAGIC,
    MAX_METADATA_BYTES,
    SEEK_ENTRY,
    SEEK_FOOTER,
    SEEK_FOOTER_MAGIC,
    SEEK_TABLE_MAGIC,
    SKIPPABLE_HEAD,
    SKIPPABLE_MAGICS,
    TRAILER_MAGIC,
    ZSTD_MAGIC,
    check_header,
    check_trailer,
    unpack_metadata,
)
from memtrack.display import shown
from memtrack.errors import RecordingError
from memtrack.events import RECORD_BYTES, ByteOrder, EventType, Lost, encode
from memtrack.zstdframe import FrameError, measure

_READ_BYTES: Final = 1 << 18
# Each damaged place costs looking at up to one frame, so a file of nothing else must come to an end.
_MAX_DAMAGED: Final = 100
# Where reading can start again after damage.
_FRAME_START: Final = re.compile(
    b"|".join(re.escape(magic.to_bytes(4, "little")) for magic in (ZSTD_MAGIC, TRAILER_MAGIC, SEEK_TABLE_MAGIC))
)
_EVENTS_REMAIN: Final = "zstd -dc may still give the events"
_REMEDIES: Final = {
    errno.ENOENT: "name a file that memtrack record has written",
    errno.EISDIR: "name a file in it",
    errno.EACCES: "ask its owner for the right to read it",
}
_TIME: Final = slice(8 - RECORD_BYTES, 16 - RECORD_BYTES)  # of the last record


class Reader:
    """One pass over a recording. `problems`, `trailer` and `complete` are final once frames() is exhausted.

    Raises RecordingError where nothing can be read: no such file, empty, not a recording, a newer version, a header
    that makes no sense. Anything less is a sentence in `problems`.
    """

    def __init__(self, source: str | os.PathLike[str] | BinaryIO) -> None:
        """Reads the header. A path is opened here, and closed by close() or at the end of frames()."""
        if isinstance(source, (str, os.PathLike)):
            self.name = shown(os.fspath(source))
            try:
                self._file: BinaryIO = Path(source).open("rb")  # noqa: SIM115 # close() closes it
            except (OSError, ValueError) as error:  # ValueError: a NUL in the name
                raise self._unreadable(error) from error
            self._owned = True
        else:
            self.name = shown(str(getattr(source, "name", "the recording")))
            self._file = source
            self._owned = False
        self.trailer: dict[str, Any] | None = None
        self.problems: list[str] = []
        self.complete = False
        self.events_read = 0
        self._frames_seen = 0
        self._damaged = 0
        self._started = False
        self._gap = False
        self._last_ns = 0
        self._decompressor = zstandard.ZstdDecompressor()
        self._window = _Window(self._file)
        self._entries = _SeekEntries()
        try:
            self.header = self._read_header()
        except OSError as error:
            self.close()
            raise self._unreadable(error) from error
        except RecordingError as error:
            self.close()
            raise RecordingError(f"cannot read {self.name}: {error.cause}", error.remedy) from None
        self._byte_order: ByteOrder = self.header["byte_order"]

    def _unreadable(self, error: OSError | ValueError) -> RecordingError:
        remedy = _REMEDIES.get(getattr(error, "errno", None) or 0)
        return RecordingError(f"cannot read {self.name}: {_reason(error)}", remedy)

    def close(self) -> None:
        """Closes the file, where the constructor opened it."""
        if self._owned:
            self._file.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def waits(self) -> bool:
        """Whether reading may wait for a writer, as it does with a pipe."""
        return not self._file.seekable()

    def seek(self, from_ns: int) -> None:
        """Before frames() or views(): has them start where all of `from_ns` or later follows, if that can be found.

        They still start with earlier records, up to a frame of them and the disorder that there may be between CPUs.
        """
        start = seek.start_of(self._file, self._byte_order, from_ns)
        if start is not None:
            self._file.seek(start)
            self._window = _Window(self._file, start)

    def frames(self) -> Iterator[bytes]:
        """The records of one frame after the other, at most container.MAX_FRAME_BYTES; to be called once.

        Where damaged frames were left out between others, there is one LOST record with count 0.
        """
        with closing(self.views()) as views:
            yield from map(bytes, views)

    def views(self, kept: int = 1) -> Generator[memoryview, None, None]:
        """The same, without a copy: a view is good until `kept` more have been asked for."""
        if self._started:
            raise RuntimeError("a Reader reads its file once")
        self._started = True
        self._buffers = [bytearray()] * kept
        try:
            yield from self._frames()
        except OSError as error:
            self._problem(f"reading fails after offset {self._window.offset}: {_reason(error)}")
        finally:
            self.close()
        if self.trailer is None:
            self._problem("the end is missing: no trailer was written, or the file was cut")
        self.complete = not self.problems

    def _frames(self) -> Iterator[memoryview]:
        while True:
            start = self._window.offset
            magic = self._next_magic()
            if magic is None:
                return
            if magic == HEADER_MAGIC or (magic == ZSTD_MAGIC and self.trailer is not None):
                self._problem(f"something else follows the recording at offset {start}; it was not read")
                return
            if magic == ZSTD_MAGIC:
                self._frames_seen += 1
                what = f"frame {self._frames_seen} at offset {start}"
            else:
                what = f"the metadata at offset {start}"
            size_bytes = 0
            try:
                if magic == ZSTD_MAGIC:
                    events = self._read_events()
                    if self._gap:
                        yield memoryview(encode(Lost(EventType.LOST, self._last_ns, 0, 0, 0), self._byte_order))
                    self._gap = False
                    self._last_ns = int.from_bytes(events[_TIME], self._byte_order)
                    yield events
                elif magic == TRAILER_MAGIC:
                    self._read_trailer()
                elif magic == SEEK_TABLE_MAGIC:
                    self._read_seek_table()
                    return
                elif magic in SKIPPABLE_MAGICS:
                    self._skip()
                else:
                    raise FrameError("no frame starts there")
                continue
            except EOFError:
                self._problem(f"{what} is not whole: the file was cut, or is damaged there")
            except FrameError as damage:
                self._problem(f"{what} is damaged: {damage}")
                size_bytes = damage.size_bytes
            self._gap = True
            self._damaged += 1
            if self._damaged > _MAX_DAMAGED:
                self._problem(f"more than {_MAX_DAMAGED} places are damaged; the rest was not read")
                return
            if not self._window.resume(size_bytes):
                return

    def _next_magic(self) -> int | None:
        """What starts here; None at the end of the file."""
        start = self._window.offset
        try:
            return int.from_bytes(self._window.peek(0, 4), "little")
        except EOFError:
            if self._window.at_end():
                if self.trailer is not None:
                    self._problem("its seek table is missing: the file was cut")
            else:
                self._problem(f"it ends inside what starts at offset {start}: the file was cut")
            return None

    def _read_events(self) -> memoryview:
        frame = measure(self._window.peek)
        # Pages of memory that are given back and taken again would cost as much as decompressing into them.
        if len(self._buffers[0]) < frame.content_bytes:
            self._buffers[0] = bytearray(frame.content_bytes)
        events = memoryview(self._buffers[0])[: frame.content_bytes]
        if not self._decompress(frame.size_bytes, events):
            lost_events = frame.content_bytes // RECORD_BYTES
            raise FrameError(f"its content does not match its checksum ({lost_events} events)", frame.size_bytes)
        self._buffers.append(self._buffers.pop(0))  # not of a frame that is left out: the caller still has the next one
        self._pass(frame.size_bytes, frame.content_bytes)
        self.events_read += len(events) // RECORD_BYTES
        return events

    def _decompress(self, size_bytes: int, into: memoryview) -> bool:
        """Whether the frame is well, and fills `into` exactly."""
        try:
            with self._window.view(size_bytes) as frame, self._decompressor.stream_reader(frame) as stream:
                # What is read behind the end makes it look at the checksum, should it not have done so yet.
                return stream.readinto(into) == len(into) and not stream.read(1)
        except zstandard.ZstdError:
            return False

    def _read_trailer(self) -> None:
        content = self._peek_metadata()
        metadata, intact = unpack_metadata(content)
        if metadata is None or not intact:
            raise FrameError("the trailer does not match its checksum", SKIPPABLE_HEAD.size + len(content))
        if self.trailer is not None:
            self._problem("it has two trailers")
        self.trailer = check_trailer(metadata)
        self._pass(SKIPPABLE_HEAD.size + len(content), 0)

    def _read_seek_table(self) -> None:
        entries_bytes = self._skippable_size() - SEEK_FOOTER.size
        if entries_bytes < 0 or entries_bytes % SEEK_ENTRY.size:
            raise FrameError("it is no seek table")
        self._window.drop(SKIPPABLE_HEAD.size)
        found = _SeekEntries()
        for chunk in self._window.pass_over(entries_bytes):
            found.extend(chunk)
        footer = self._window.peek(0, SEEK_FOOTER.size)
        self._window.drop(SEEK_FOOTER.size)
        expected = SEEK_FOOTER.pack(entries_bytes // SEEK_ENTRY.size, 0, SEEK_FOOTER_MAGIC)
        # After damage it cannot match, and says nothing that is not known.
        if not self._damaged and (footer != expected or found.digest != self._entries.digest):
            self._problem("its seek table does not match its frames")
        if not self._window.at_end():
            self._problem(f"something else follows the recording at offset {self._window.offset}; it was not read")

    def _skip(self) -> None:
        size = self._skippable_size()
        self._window.drop(SKIPPABLE_HEAD.size)
        for _ in self._window.pass_over(size):
            pass
        self._entries.add(SKIPPABLE_HEAD.size + size, 0)

    def _pass(self, size_bytes: int, content_bytes: int) -> None:
        self._window.drop(size_bytes)
        self._entries.add(size_bytes, content_bytes)

    def _skippable_size(self) -> int:
        _, size = SKIPPABLE_HEAD.unpack(self._window.peek(0, SKIPPABLE_HEAD.size))
        return int(size)

    def _peek_metadata(self) -> bytes:
        size = self._skippable_size()
        if size > MAX_METADATA_BYTES:
            raise FrameError(f"it claims {size} bytes, more than the {MAX_METADATA_BYTES} that are accepted")
        return self._window.peek(SKIPPABLE_HEAD.size, size)

    def _read_header(self) -> dict[str, Any]:
        try:
            magic = int.from_bytes(self._window.peek(0, 4), "little")
            if magic != HEADER_MAGIC:
                raise RecordingError("it is not a memtrack recording", "those start with a header of memtrack's")
            content = self._peek_metadata()
        except EOFError:
            if self._window.at_end():
                raise RecordingError("it is empty", "nothing was recorded into it; record again") from None
            raise RecordingError("it ends inside its header", "no event was recorded into it; record again") from None
        except FrameError as damage:
            raise RecordingError(f"its header is damaged: {damage}", _EVENTS_REMAIN) from None
        metadata, intact = unpack_metadata(content)
        if metadata is None:
            raise RecordingError("its header is damaged", _EVENTS_REMAIN)
        header = check_header(metadata)
        if not intact:
            self._problem("its header does not match its checksum: command, hooks and times may be wrong")
        self._pass(SKIPPABLE_HEAD.size + len(content), 0)
        return header

    def _problem(self, text: str) -> None:
        self.problems.append(text)


class _SeekEntries:
    """What the seek table must be, without keeping it."""

    def __init__(self) -> None:
        self._size_bytes = 0
        self._crc = 0

    def add(self, size_bytes: int, content_bytes: int) -> None:
        self.extend(SEEK_ENTRY.pack(size_bytes, content_bytes))

    def extend(self, packed: bytes) -> None:
        self._size_bytes += len(packed)
        self._crc = zlib.crc32(packed, self._crc)

    @property
    def digest(self) -> tuple[int, int]:
        return self._size_bytes, self._crc


class _Window:
    """The part of the file that is looked at: from `offset` on, as far as anything has asked."""

    def __init__(self, file: BinaryIO, offset: int = 0) -> None:
        self._file = file
        self._buffer = bytearray()
        self._start = 0  # of what has not been dropped
        self.offset = offset

    def _fill(self, size: int) -> bool:
        while len(self._buffer) - self._start < size:
            if self._start:
                del self._buffer[: self._start]
                self._start = 0
            chunk = self._file.read(max(_READ_BYTES, size - len(self._buffer)))
            if not chunk:
                return False
            self._buffer += chunk
        return True

    def at_end(self) -> bool:
        return not self._fill(1)

    def peek(self, offset: int, size: int) -> bytes:
        """Bytes that stay in the window; EOFError where the file ends before them."""
        if not self._fill(offset + size):
            raise EOFError
        start = self._start + offset
        return bytes(self._buffer[start : start + size])

    def view(self, size: int) -> memoryview:
        """The first bytes of the window, which were peeked at; to be released before anything else is called."""
        return memoryview(self._buffer)[self._start : self._start + size]

    def drop(self, size: int) -> None:
        """Moves past bytes that are in the window."""
        size = min(size, len(self._buffer) - self._start)
        self.offset += size
        self._start += size

    def pass_over(self, size: int) -> Iterator[bytes]:
        """Moves past any number of bytes, in pieces; EOFError where the file has fewer."""
        while size:
            if self.at_end():
                raise EOFError
            chunk = bytes(self._buffer[self._start : self._start + size])
            self.drop(len(chunk))
            size -= len(chunk)
            yield chunk

    def resume(self, size_bytes: int) -> bool:
        """After damage, moves to where a frame may start; False where none does.

        That is behind the damaged frame, where its size makes sense, else at the next bytes that look like a start.
        """
        if size_bytes and (not self._fill(size_bytes + 4) or self._starts_at(size_bytes)):
            self.drop(size_bytes)
            return not self.at_end()
        self.drop(1)
        while (found := _FRAME_START.search(self._buffer, self._start)) is None:
            # The last three may be a start's first.
            self.drop(max(0, len(self._buffer) - self._start - 3))
            if not self._fill(len(self._buffer) - self._start + 1):
                return False
        self.drop(found.start() - self._start)
        return True

    def _starts_at(self, offset: int) -> bool:
        return _FRAME_START.match(self._buffer, self._start + offset) is not None


def _reason(error: OSError | ValueError) -> str:
    return str(getattr(error, "strerror", None) or error).lower()
