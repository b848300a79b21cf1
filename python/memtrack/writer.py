"""Writes recordings, so that what has been written can be read whatever happens next."""

from __future__ import annotations

import errno
import io
import json
import os
from array import array
from contextlib import suppress
from typing import Any, BinaryIO, Final, NoReturn, cast

import zstandard

from memtrack.container import (
    FORMAT,
    FRAME_EVENTS,
    HEADER_MAGIC,
    MAX_METADATA_BYTES,
    SEEK_FOOTER,
    SEEK_FOOTER_MAGIC,
    SEEK_TABLE_MAGIC,
    TRAILER_MAGIC,
    VERSION,
    pack_metadata,
    skippable,
)
from memtrack.errors import OutputError
from memtrack.events import NATIVE, RECORD_BYTES, Buffer

# Records repeat at short distances, so a small hash table, which remembers the nearest match and not an older one, both
# compresses better and is faster than zstd's levels. Measured on real recordings: 3.5 bytes an event for one process
# that faults, for two, and for two threads, and 4.1 for a parallel build, at 27 million events a second. Level 1
# is as fast and needs 3.5, 3.9, 3.6 and 4.8; level 6 needs 3.5, 3.6, 3.5 and 4.0, at 5 million a second.
_COMPRESSION: Final = {
    "strategy": zstandard.STRATEGY_FAST,
    "hash_log": 8,
    "min_match": 5,
    "window_log": 20,  # a whole frame
    "write_checksum": True,
    "write_content_size": True,
}

_FRAME_BYTES: Final = FRAME_EVENTS * RECORD_BYTES


class Writer:
    """Writes a recording to a file descriptor or a binary file, neither of which it closes.

    One thread at a time. Every frame is on its way to the file when write_frame returns. When the file cannot take one
    (OutputError), or an exception interrupts its writing, the file is cut back to the last whole frame; after an
    OutputError the writer takes no more, and the recording stays without its trailer, as one that was cut.
    """

    def __init__(self, file: int | BinaryIO, header: dict[str, Any]) -> None:
        """Starts the recording. `self.header` is the header with format, version, event size and byte order added."""
        self._file = _unbuffered(file)
        self._compressor = zstandard.ZstdCompressor(
            compression_params=zstandard.ZstdCompressionParameters(**_COMPRESSION)
        )
        # Two 32-bit numbers a frame, as the seek table has them.
        self._entries = array("I")
        self._failure: OutputError | None = None
        self._seekable = self._file.seekable()
        self._start = self._end = self._file.tell() if self._seekable else 0
        self.header = complete_header(header)
        content = pack_metadata(self.header)
        if len(content) > MAX_METADATA_BYTES:
            raise ValueError(f"a header of {len(content)} bytes is more than readers accept")
        self._write(skippable(HEADER_MAGIC, content), content_bytes=0)

    @property
    def written_bytes(self) -> int:
        """The file's size so far."""
        return self._end - self._start

    def write_frame(self, events: Buffer) -> None:
        """Whole records in this machine's byte order, as many as there are; a large buffer becomes several frames."""
        view = memoryview(events).cast("B")
        if len(view) % RECORD_BYTES:
            raise ValueError(f"{len(view)} bytes are no whole number of {RECORD_BYTES}-byte records")
        for start in range(0, len(view), _FRAME_BYTES):
            chunk = view[start : start + _FRAME_BYTES]
            self._write(self._compressor.compress(chunk), content_bytes=len(chunk))

    def finish(self, trailer: dict[str, Any]) -> None:
        """Writes trailer and seek table, which make the recording complete."""
        content = pack_metadata(trailer)
        if len(content) > MAX_METADATA_BYTES:
            raise ValueError(f"a trailer of {len(content)} bytes is more than readers accept")
        self._write(skippable(TRAILER_MAGIC, content), content_bytes=0)
        entries = self._entries[:]
        if NATIVE == "big":
            entries.byteswap()
        footer = SEEK_FOOTER.pack(len(entries) // 2, 0, SEEK_FOOTER_MAGIC)
        self._write(skippable(SEEK_TABLE_MAGIC, entries.tobytes() + footer), content_bytes=0)

    def _write(self, frame: bytes, content_bytes: int) -> None:
        if self._failure is not None:
            raise self._failure
        rest = memoryview(frame)
        try:
            while rest:
                written = self._file.write(rest)
                if not written:  # None: the descriptor is non-blocking and full
                    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
                rest = rest[written:]
        except OSError as error:
            self._cut_back()
            self._fail(error)
        except BaseException:  # a signal handler's exception, such as KeyboardInterrupt: half a frame must not stay
            self._cut_back()
            raise
        self._end += len(frame)
        self._entries.extend((len(frame), content_bytes))

    def _cut_back(self) -> None:
        # What can be neither sought nor truncated (a pipe, a device) keeps the torn frame; readers end before it.
        with suppress(OSError):
            if self._seekable:
                self._file.seek(self._end)
                self._file.truncate()

    def _fail(self, error: OSError) -> NoReturn:
        remedy = "what was written up to then can be read"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = f"free some space or write elsewhere with -o; {remedy}"
        self._failure = OutputError(f"cannot write the recording: {error.strerror or error}".lower(), remedy)
        raise self._failure from error


def _unbuffered(file: int | BinaryIO) -> io.RawIOBase | BinaryIO:
    if isinstance(file, int):
        return io.FileIO(file, "wb", closefd=False)
    file.flush()
    # A buffer would keep, and write later, what cutting back has removed.
    return cast(BinaryIO, getattr(file, "raw", file))


def complete_header(header: dict[str, Any]) -> dict[str, Any]:
    """The header with what every recording of this version has, and a command that readers accept."""
    header = {
        "format": FORMAT,
        "version": VERSION,
        "event_size": RECORD_BYTES,
        "byte_order": NATIVE,
        **header,
    }
    if len(pack_metadata(header)) > MAX_METADATA_BYTES:
        header = _with_command_cut(header)
    return header


def _with_command_cut(header: dict[str, Any]) -> dict[str, Any]:
    """The header with the command's first arguments, as fit in half the room; "command_cut" counts those left out."""
    room = MAX_METADATA_BYTES // 2
    kept: list[str] = []
    for argument in header.get("command", []):
        room -= len(json.dumps(argument)) + 1
        if room < 0:
            break
        kept.append(argument)
    return {**header, "command": kept, "command_cut": len(header.get("command", [])) - len(kept)}
