"""Writing and reading recordings that are well; test_damage.py has the others."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from memtrack import container
from memtrack.errors import OutputError
from memtrack.events import RECORD_BYTES
from memtrack.tracefile import Reader, Writer
from tests.unit.streams import ANON, HEADER, TRAILER, Stream, recording


def records(count: int, start: int = 0) -> bytes:
    stream = Stream()
    for number in range(start, start + count):
        stream.rss(10, ANON, number * 4096)
    return stream.data


def read(data: bytes) -> tuple[Reader, list[bytes]]:
    reader = Reader(io.BytesIO(data))
    return reader, list(reader.frames())


def test_round_trip() -> None:
    frames = [records(5), records(7, 5)]
    reader, found = read(recording(*frames))
    assert found == frames
    assert reader.problems == []
    assert reader.complete
    assert reader.events_read == 12
    assert reader.header == {
        "format": "memtrack",
        "version": 1,
        "event_size": RECORD_BYTES,
        "byte_order": sys.byteorder,
        **HEADER,
    }
    assert reader.trailer == TRAILER


def test_a_recording_of_nothing() -> None:
    reader, found = read(recording())
    assert (found, reader.complete, reader.events_read) == ([], True, 0)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.binary(max_size=20).map(lambda raw: raw * RECORD_BYTES), max_size=5))
def test_any_bytes_survive(frames: list[bytes]) -> None:
    reader, found = read(recording(*frames))
    assert found == [frame for frame in frames if frame]
    assert reader.complete


def test_a_large_buffer_becomes_several_frames() -> None:
    data = records(container.FRAME_EVENTS * 2 + 1)
    reader, found = read(recording(data))
    assert [len(frame) // RECORD_BYTES for frame in found] == [container.FRAME_EVENTS, container.FRAME_EVENTS, 1]
    assert b"".join(found) == data
    assert reader.complete


def test_only_whole_records_are_written() -> None:
    writer = Writer(io.BytesIO(), HEADER)
    with pytest.raises(ValueError, match="47 bytes"):
        writer.write_frame(bytes(47))


def test_names_that_are_not_utf8_survive() -> None:
    command = [os.fsdecode(b"\xff\xfe caf\xc3\xa9"), "new\nline", "\x1b[31m", "", "\N{SNOWMAN}"]
    reader, _ = read(recording(header={"command": command}))
    assert reader.header["command"] == command
    assert os.fsencode(reader.header["command"][0]) == b"\xff\xfe caf\xc3\xa9"


@pytest.mark.skipif(shutil.which("zstd") is None, reason="the zstd program is not installed")
def test_the_zstd_program_gives_the_events(tmp_path: Path) -> None:
    data = records(container.FRAME_EVENTS + 5)
    path = tmp_path / "run.zst"
    path.write_bytes(recording(data, records(3)))
    assert subprocess.run(["zstd", "-dc", path], check=True, capture_output=True).stdout == data + records(3)
    subprocess.run(["zstd", "-tq", path], check=True)


def test_any_zstd_library_gives_the_events() -> None:
    data = records(100)
    file = io.BytesIO(recording(data, data))
    with zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as stream:
        assert stream.read() == data + data


def test_frames_have_checksum_and_content_size() -> None:
    data = recording(records(9))
    start = data.index(container.ZSTD_MAGIC.to_bytes(4, "little"))
    frame = zstandard.get_frame_parameters(data[start:])
    assert (frame.has_checksum, frame.content_size, frame.dict_id) == (True, 9 * RECORD_BYTES, 0)


def test_the_seek_table_finds_every_frame() -> None:
    """As the zstd seekable format has it: from the end of the file, through the sizes, to any frame."""
    frames = [records(3), records(50, 3), records(1, 53)]
    data = recording(*frames)
    count, descriptor, magic = container.SEEK_FOOTER.unpack(data[-container.SEEK_FOOTER.size :])
    assert (descriptor, magic) == (0, container.SEEK_FOOTER_MAGIC)
    table = data[-container.SEEK_FOOTER.size - count * 8 : -container.SEEK_FOOTER.size]
    magic, size = container.SKIPPABLE_HEAD.unpack(data[-container.SEEK_FOOTER.size - count * 8 - 8 :][:8])
    assert (magic, size) == (container.SEEK_TABLE_MAGIC, len(table) + container.SEEK_FOOTER.size)
    offset, found = 0, []
    for size_bytes, content_bytes in container.SEEK_ENTRY.iter_unpack(table):
        if content_bytes:
            content = zstandard.ZstdDecompressor().decompress(data[offset : offset + size_bytes])
            assert len(content) == content_bytes
            found.append(content)
        offset += size_bytes
    assert found == frames
    assert count == len(frames) + 2  # header and trailer
    assert offset == len(data) - len(table) - 8 - container.SEEK_FOOTER.size


def test_metadata_is_json_in_a_skippable_frame() -> None:
    data = recording()
    magic, size = container.SKIPPABLE_HEAD.unpack(data[:8])
    assert magic == container.HEADER_MAGIC
    header = json.loads(data[8 : 8 + size])
    assert header["format"] == "memtrack"
    assert set(header) == {*HEADER, "format", "version", "event_size", "byte_order", "crc32"}


def test_a_descriptor_does(tmp_path: Path) -> None:
    path = tmp_path / "run.zst"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        writer = Writer(descriptor, HEADER)
        writer.write_frame(records(3))
        assert writer.written_bytes == path.stat().st_size  # nothing waits in a buffer
        writer.finish(TRAILER)
        os.fstat(descriptor)  # still open
    finally:
        os.close(descriptor)
    with Reader(path) as reader:
        assert b"".join(reader.frames()) == records(3)
    assert reader.complete


def test_a_buffered_file_does(tmp_path: Path) -> None:
    path = tmp_path / "run.zst"
    with path.open("wb") as file:
        writer = Writer(file, HEADER)
        writer.write_frame(records(3))
        assert path.stat().st_size == writer.written_bytes
        writer.finish(TRAILER)
    assert path.read_bytes() == recording(records(3))


def test_through_a_pipe() -> None:
    data = records(container.FRAME_EVENTS)
    readable, writable = os.pipe()

    def write() -> None:
        writer = Writer(writable, HEADER)
        writer.write_frame(data)
        writer.finish(TRAILER)
        os.close(writable)

    thread = threading.Thread(target=write)
    thread.start()
    with os.fdopen(readable, "rb") as file:
        reader = Reader(file)
        assert b"".join(reader.frames()) == data
    thread.join()
    assert reader.complete


def test_a_reader_reads_once() -> None:
    reader, _ = read(recording(records(1)))
    with pytest.raises(RuntimeError):
        next(reader.frames())


def test_a_reader_that_is_left_early_is_not_complete() -> None:
    reader = Reader(io.BytesIO(recording(records(1), records(2))))
    assert next(reader.frames()) == records(1)
    assert not reader.complete


def test_other_skippable_frames_are_passed_over() -> None:
    """Any tool may add some; the seek table then is no longer theirs, which is said."""
    data = recording(records(3), records(4))
    start = data.rindex(container.ZSTD_MAGIC.to_bytes(4, "little"))
    extra = container.skippable(0x184D2A55, b"a note" * 100_000)
    reader, found = read(data[:start] + extra + data[start:])
    assert found == [records(3), records(4)]
    assert reader.problems == ["its seek table does not match its frames"]


# --- the file takes no more -------------------------------------------------------------------------------------------


class FullFile(io.BytesIO):
    """Takes so many bytes, the last write in part, and then nothing."""

    def __init__(self, room: int, error: int = errno.ENOSPC) -> None:
        super().__init__()
        self.room = room
        self.error = error

    def write(self, data: Any) -> int:
        part = bytes(memoryview(data)[: self.room])
        if not part:
            raise OSError(self.error, os.strerror(self.error))
        self.room -= len(part)
        return super().write(part)


@pytest.mark.parametrize("room_after_header", [0, 1, 100])
def test_disk_full_keeps_what_is_whole(room_after_header: int) -> None:
    before = io.BytesIO()
    Writer(before, HEADER).write_frame(records(500))
    file = FullFile(len(before.getvalue()) + room_after_header)
    writer = Writer(file, HEADER)
    writer.write_frame(records(500))
    with pytest.raises(OutputError) as caught:
        writer.write_frame(os.urandom(480 * RECORD_BYTES))
    assert str(caught.value) == (
        "cannot write the recording: no space left on device "
        "(free some space or write elsewhere with -o; what was written up to then can be read)"
    )
    assert caught.value.exit_code == 125
    assert file.getvalue() == before.getvalue()
    file.room = 1 << 20
    with pytest.raises(OutputError):
        writer.write_frame(records(1))
    with pytest.raises(OutputError):
        writer.finish(TRAILER)
    reader, found = read(file.getvalue())
    assert found == [records(500)]
    assert not reader.complete


def test_disk_full_at_once() -> None:
    with pytest.raises(OutputError, match="no space left"):
        Writer(FullFile(10), HEADER)


@pytest.mark.parametrize("error", [errno.EIO, errno.EFBIG, errno.EPIPE])
def test_other_failures_say_what_failed(error: int) -> None:
    with pytest.raises(OutputError, match=os.strerror(error).lower()):
        Writer(FullFile(0, error), HEADER)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
def test_dev_full() -> None:
    with Path("/dev/full").open("wb") as file, pytest.raises(OutputError, match="no space left"):
        Writer(file, HEADER)


@pytest.mark.skipif(not hasattr(os, "set_blocking"), reason="no non-blocking files here")
def test_a_descriptor_that_would_block() -> None:
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    try:
        writer = Writer(writable, HEADER)
        with pytest.raises(OutputError, match="temporarily unavailable"):
            writer.write_frame(os.urandom(container.FRAME_EVENTS * RECORD_BYTES))  # more than a pipe takes
    finally:
        os.close(readable)
        os.close(writable)


def test_an_interrupted_frame_is_taken_back() -> None:
    class Interrupted(io.BytesIO):
        interrupt = False

        def write(self, data: Any) -> int:
            if not self.interrupt:
                return super().write(data)
            self.interrupt = False
            super().write(bytes(data)[:7])
            signal.raise_signal(signal.SIGINT)
            return 7

    file = Interrupted()
    writer = Writer(file, HEADER)
    writer.write_frame(records(2))
    file.interrupt = True
    with pytest.raises(KeyboardInterrupt):
        writer.write_frame(records(3))
    writer.write_frame(records(4))
    writer.finish(TRAILER)
    reader, found = read(file.getvalue())
    assert found == [records(2), records(4)]
    assert reader.complete


# --- metadata ---------------------------------------------------------------------------------------------------------


def test_a_command_that_is_too_long_is_cut_and_says_so() -> None:
    command = ["\udcff" * 1000] * 1000  # escaped, six bytes each
    reader, _ = read(recording(header={"command": command}))
    kept = len(reader.header["command"])
    assert 0 < kept < 1000
    assert reader.header["command"] == command[:kept]
    assert reader.header["command_cut"] == 1000 - kept
    assert reader.complete


def test_what_is_too_large_is_refused_when_written() -> None:
    with pytest.raises(ValueError, match="header"):
        Writer(io.BytesIO(), {**HEADER, "kernel": "x" * container.MAX_METADATA_BYTES})
    with pytest.raises(ValueError, match="trailer"):
        Writer(io.BytesIO(), HEADER).finish({"x": "x" * container.MAX_METADATA_BYTES})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_json_is_refused_when_written(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        container.pack_metadata({"x": value})


def test_metadata_has_its_checksum() -> None:
    packed = container.pack_metadata({"a": 1, "b": "\udcff"})
    assert container.unpack_metadata(packed) == ({"a": 1, "b": "\udcff"}, True)
    for place in range(len(packed)):
        for bit in range(8):
            flipped = bytearray(packed)
            flipped[place] ^= 1 << bit
            assert not container.unpack_metadata(bytes(flipped))[1]


def test_empty_metadata() -> None:
    assert container.unpack_metadata(container.pack_metadata({})) == ({}, True)


@pytest.mark.skipif(sys.platform == "win32", reason="the limit is POSIX's")
def test_file_size_limit(tmp_path: Path) -> None:
    """RLIMIT_FSIZE is a disk that is full at a place of one's choice; its signal must not end us."""
    path = tmp_path / "run.zst"
    code = f"""
import resource, signal, sys, os
from memtrack.errors import OutputError
from memtrack.tracefile import Writer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
with open({str(path)!r}, "wb") as file:
    writer = Writer(file, {HEADER!r})
    try:
        for _ in range(100):
            writer.write_frame(os.urandom(480 * 48))
    except OutputError as error:
        print(error.cause)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "cannot write the recording: file too large\n"
    with Reader(path) as reader:
        frames = list(reader.frames())
    assert {len(frame) for frame in frames} == {480 * RECORD_BYTES}
    assert path.stat().st_size < 100_000
    assert reader.problems == ["the end is missing: no trailer was written, or the file was cut"]
