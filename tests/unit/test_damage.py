"""Files that are not what they should be: nothing but a RecordingError, nothing called complete that is not, and
everything whole is kept."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

import memtrack
from memtrack import container, events, report
from memtrack.errors import RecordingError
from memtrack.events import EventType
from memtrack.reader import Reader
from tests.unit.streams import ANON, HEADER, MIB, TRAILER, Stream, recording

# Three frames, as small as they get, and a short header: every byte of it is tried.
STREAM = Stream()
FRAMES = [
    STREAM.root(10, anon=MIB).data,
    Stream().fork(11, 10).sync(11, anon=2 * MIB).data,
    Stream().rss(11, ANON, 3 * MIB).exit(11).rss(10, ANON, 2 * MIB).data,
]
SMALL = recording(*FRAMES, header={"sources": {}, "clock": "x"})
ALL_EVENTS = b"".join(FRAMES)

ZSTD_MAGIC = container.ZSTD_MAGIC.to_bytes(4, "little")


def starts(data: bytes) -> list[int]:
    """Offsets of the header, the frames, the trailer, the seek table, and the end, from the file's own seek table."""
    count, _, _ = container.SEEK_FOOTER.unpack(data[-container.SEEK_FOOTER.size :])
    table = data[-container.SEEK_FOOTER.size - 8 * count : -container.SEEK_FOOTER.size]
    sizes = [size for size, _ in container.SEEK_ENTRY.iter_unpack(table)]
    return [*itertools.accumulate(sizes, initial=0), len(data)]


STARTS = starts(SMALL)
HEADER_END, TRAILER_START = STARTS[1], STARTS[4]


class Read:
    """All that may be asked of a file."""

    def __init__(self, data: bytes) -> None:
        reader = Reader(io.BytesIO(data))
        frames = list(reader.frames())
        found = memtrack.open(io.BytesIO(data))
        assert found.problems == reader.problems
        assert found.complete == reader.complete == (not reader.problems)
        json.loads(json.dumps(report.to_json(found), allow_nan=False))
        assert report.to_text(found).isprintable() or "\n" in report.to_text(found)
        list(found.events())
        self.frames = [frame for frame in frames if not is_gap(frame)]
        self.gaps = len(frames) - len(self.frames)
        self.problems = reader.problems
        self.complete = reader.complete
        self.header, self.trailer = reader.header, reader.trailer
        self.recording = found


def is_gap(frame: bytes) -> bool:
    first = next(events.decode(frame, events.NATIVE))
    return isinstance(first, events.Lost) and first.lost_events == 0 and len(frame) == events.RECORD_BYTES


def refused(data: bytes) -> str:
    with pytest.raises(RecordingError) as caught:
        Reader(io.BytesIO(data))
    text = str(caught.value)
    assert "\n" not in text
    assert caught.value.exit_code == 125
    return text


def test_the_small_recording_is_well() -> None:
    read = Read(SMALL)
    assert read.complete
    assert read.frames == FRAMES
    assert len(SMALL) < 1000


@pytest.mark.parametrize("size", range(len(SMALL)))
def test_cut_at_every_byte(size: int) -> None:
    data = SMALL[:size]
    if size < HEADER_END:
        assert refused(data) == (
            "cannot read the recording: it is empty (nothing was recorded into it; record again)"
            if size == 0
            else "cannot read the recording: it ends inside its header (no event was recorded into it; record again)"
        )
        return
    read = Read(data)
    whole = sum(start <= size for start in STARTS[2:5])
    assert read.frames == FRAMES[:whole]
    assert not read.complete
    assert (read.trailer is not None) == (size >= STARTS[5])
    inside = size not in STARTS
    expected = []
    if inside and size >= STARTS[5] + 4:
        expected = [f"the metadata at offset {STARTS[5]} is not whole: the file was cut, or is damaged there"]
    elif inside:
        last = max(start for start in STARTS if start < size)
        if size < last + 4:
            expected = [f"it ends inside what starts at offset {last}: the file was cut"]
        elif last == TRAILER_START:
            expected = [f"the metadata at offset {last} is not whole: the file was cut, or is damaged there"]
        else:
            expected = [f"frame {whole + 1} at offset {last} is not whole: the file was cut, or is damaged there"]
    if size < STARTS[5]:
        expected.append("the end is missing: no trailer was written, or the file was cut")
    elif size == STARTS[5]:
        expected.append("its seek table is missing: the file was cut")
    assert read.problems == expected


# What a power cut may leave where the file system allocates late: the length, and zeros where data should be.
@pytest.mark.parametrize("zeros", [1, 3, 4, 48, 1 << 14])
def test_cut_at_every_byte_and_made_up_with_zeros(zeros: int) -> None:
    for size in range(HEADER_END, len(SMALL)):
        data = SMALL[:size] + bytes(zeros)
        if data.startswith(SMALL):  # the seek table's last bytes but some are zeros
            continue
        read = Read(data)
        assert read.frames == [frame for frame, end in zip(FRAMES, STARTS[2:5], strict=True) if end <= size]
        assert read.gaps == 0
        assert not read.complete
        wanted = [event for event in events.decode(b"".join(read.frames)) if event.time_ns >= 1_003_000]
        assert list(read.recording.events(1_003_000)) == wanted
        if size >= STARTS[5]:  # nothing but the seek table is amiss
            assert read.trailer == TRAILER
            continue
        where = max(start for start in STARTS if start <= size)
        what = rf"frame {STARTS.index(where)} at offset {where} is |the metadata at offset {where} is |it ends inside"
        assert re.match(what, read.problems[0]), size
        # Of three bytes and less that are left over nobody can say what they are.
        leftover = [problem for problem in read.problems[1:-1] if problem.startswith("it ends inside what starts at ")]
        assert read.problems[1:] == [
            *leftover[:1],
            "the end is missing: no trailer was written, or the file was cut",
        ]


@pytest.mark.parametrize("place", range(len(SMALL)))
def test_every_flipped_bit(place: int) -> None:
    for bit in range(8):
        data = bytearray(SMALL)
        data[place] ^= 1 << bit
        if place < HEADER_END:
            try:
                read = Read(bytes(data))
            except RecordingError:
                continue
            assert read.frames == FRAMES
            assert not read.complete
            continue
        read = Read(bytes(data))
        if place >= TRAILER_START:
            assert read.frames == FRAMES
            assert not read.complete
            assert read.gaps == 0
            continue
        struck = sum(start <= place for start in STARTS[1:5])
        if read.complete:
            # A bit that nothing depends on: an unused one (RFC 8878, 3.1.1.1.1.4), a window that is merely larger, a
            # match that is found at another place as well. The content has passed its checksum.
            assert read.frames == FRAMES
            assert read.trailer == TRAILER
        else:
            assert read.frames == [frame for number, frame in enumerate(FRAMES, 1) if number != struck]
            assert read.gaps == (struck < len(FRAMES))
            assert read.trailer == TRAILER
            magic = place < STARTS[struck] + 4
            what = "the metadata" if magic else f"frame {struck}"
            assert read.problems[0].startswith(f"{what} at offset {STARTS[struck]} is ")


def test_after_a_gap_figures_start_anew() -> None:
    """The frame with the fork of 11 is gone: 10 is not known to hold anything until it is said again."""
    data = bytearray(SMALL)
    data[STARTS[3] - 1] ^= 1
    found = Read(bytes(data)).recording
    assert found.problems == [
        f"frame 2 at offset {STARTS[2]} is damaged: its content does not match its checksum (5 events)"
    ]
    assert found.peak.rss_bytes == 3 * MIB
    assert [(process.pid, process.ppid, process.last.anon_bytes) for process in found.processes] == [
        (10, 1, 2 * MIB),
        (11, None, 3 * MIB),
    ]
    assert [type(event) for event in found.events()].count(events.Lost) == 1


# --- what is no recording ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"hello\n",
        b"\x7fELF" + bytes(100),
        bytes(100),
        zstandard.compress(b"something else"),
        container.skippable(0x184D2A53, b"{}"),
    ],
    ids=["text", "program", "zeros", "zstd", "skippable"],
)
def test_other_files(data: bytes) -> None:
    assert refused(data) == (
        "cannot read the recording: it is not a memtrack recording (those start with a header of memtrack's)"
    )


def with_header(content: bytes) -> bytes:
    return container.skippable(container.HEADER_MAGIC, content) + SMALL[HEADER_END:]


def header_with(**members: Any) -> bytes:
    complete = {"format": "memtrack", "version": 1, "event_size": 48, "byte_order": "little", **HEADER, **members}
    return with_header(container.pack_metadata(complete))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"\xff\xfe{}",
        b'{"format":NaN}',
        b'{"a":' * 100_000,
        b"[" * 1_000_000,
        b"1" * 1_000_000,
        b"{" + b'"a":1,' * 10,
    ],
    ids=["empty", "list", "null", "cut", "not ASCII", "NaN", "deep objects", "deep lists", "long number", "no end"],
)
def test_headers_that_are_no_header(content: bytes) -> None:
    assert refused(with_header(content)) == (
        "cannot read the recording: its header is damaged (zstd -dc may still give the events)"
    )


def test_json_of_something_else() -> None:
    assert "is not a memtrack recording" in refused(with_header(b"{}"))
    assert "is not a memtrack recording" in refused(header_with(format="other"))


@pytest.mark.parametrize("version", [2, 10**9])
def test_newer_version(version: int) -> None:
    assert refused(header_with(version=version)) == (
        f"cannot read the recording: it has version {version} of the format, and this memtrack reads up to 1 "
        "(upgrade memtrack)"
    )


@pytest.mark.parametrize("version", [0, -1, None, "1", 1.0, True, [], 10**30])
def test_a_version_that_is_none(version: object) -> None:
    assert "names no version" in refused(header_with(version=version))


@pytest.mark.parametrize(
    "members",
    [
        {"event_size": 56},
        {"event_size": None},
        {"byte_order": "middle"},
        {"byte_order": []},
        {"page_size": 0},
        {"page_size": -4096},
        {"page_size": 5000},
        {"page_size": 4096.0},
        {"page_size": 1 << 40},
        {"page_size": "4096"},
        {"page_size": True},
    ],
)
def test_headers_that_do_not_say_how_to_read(members: dict[str, Any]) -> None:
    assert "does not say how events are laid out" in refused(header_with(**members))


STRANGE: list[Any] = [None, True, -1, 10**30, 1.5, "x", [], [1], [None], {}, {"rss": 1}, {"rss": {"hook": 1}}, [[[[]]]]]


@pytest.mark.parametrize(
    "name", ["command", "start_ns", "clock_offset_ns", "detail", "sources", "kernel", "recorder", "crc32"]
)
def test_strange_members_of_a_header(name: str) -> None:
    for value in STRANGE:
        if name == "crc32":
            complete = {"format": "memtrack", "version": 1, "event_size": 48, "byte_order": "little", **HEADER}
            Read(with_header(json.dumps({**complete, "crc32": value}).encode()))
        else:
            read = Read(header_with(**{name: value}))
            assert read.frames == FRAMES


@pytest.mark.parametrize("name", ["events", "lost_events", "status", "end_ns", "peak", "processes_left"])
def test_strange_members_of_a_trailer(name: str) -> None:
    for value in [*STRANGE, {"exit_code": "x"}, {"exit_code": 10**30, "signal": -1}]:
        read = Read(recording(*FRAMES, trailer={name: value}))
        assert read.frames == FRAMES
        assert read.complete


@pytest.mark.parametrize("content", [b"", b"[]", b"[" * 1_000_000, b'{"lost_events":0}'])
def test_trailers_that_are_none(content: bytes) -> None:
    trailer = container.skippable(container.TRAILER_MAGIC, content)
    read = Read(SMALL[:TRAILER_START] + trailer + SMALL[STARTS[5] :])
    assert read.frames == FRAMES
    assert read.problems == [
        f"the metadata at offset {TRAILER_START} is damaged: the trailer does not match its checksum",
        "the end is missing: no trailer was written, or the file was cut",
    ]


# --- absurd claims ----------------------------------------------------------------------------------------------------


def frame_with(header: bytes, blocks: bytes = b"\x01\x00\x00", checksum: bytes = bytes(4)) -> bytes:
    return ZSTD_MAGIC + header + blocks + checksum


RLE_MAX = struct.pack("<I", 128 << 10 << 3 | 1 << 1)[:3] + b"\0"

CLAIMS = {
    "content of 2^60": (frame_with(b"\xe4" + (1 << 60).to_bytes(8, "little")), "it claims to need 1152921504606846976"),
    "window of 2^41": (frame_with(b"\xc4\xf8" + (48).to_bytes(8, "little")), "it claims to need 2199023255552"),
    "content of 16 MiB and a record": (
        frame_with(b"\xe4" + ((16 << 20) + 48).to_bytes(8, "little")),
        "it claims to need 16777264",
    ),
    "no content": (frame_with(b"\x24\x00"), "it claims 0 bytes"),
    "half a record": (frame_with(b"\x24\x18"), "it claims 24 bytes"),
    "no content size": (frame_with(b"\x04\x48"), "it has no content size"),
    "no checksum": (frame_with(b"\x20\x30"), "it has no checksum"),
    "a dictionary": (frame_with(b"\x25\x01\x30"), "it wants a dictionary"),
    "the reserved bit": (frame_with(b"\x2c\x30"), "its header has a reserved bit set"),
    "a block of no type": (frame_with(b"\x24\x30", b"\x07\x00\x00"), "it has a block of no known type"),
    "a block larger than its frame": (frame_with(b"\x24\x30", b"\x89\x01\x00"), "it has a block larger"),
    "empty blocks without end": (frame_with(b"\x24\x30", bytes(3) * 1000), "it has more blocks than"),
    "raw blocks larger than the content": (
        frame_with(b"\x64" + (4800 - 256).to_bytes(2, "little"), ((4800 << 3).to_bytes(3, "little") + bytes(4800)) * 3),
        "its blocks are larger",
    ),
    "a bomb": (
        frame_with(b"\xc4\x70" + (48 * 349525).to_bytes(8, "little"), RLE_MAX * 10_000 + b"\x03\x00\x00\x00"),
        "its content does not match its checksum (349525 events)",
    ),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_absurd_frames(name: str) -> None:
    """One between two good frames is left out, and named."""
    frame, why = CLAIMS[name]
    read = Read(SMALL[: STARTS[2]] + frame + SMALL[STARTS[2] :])
    assert read.frames == FRAMES
    assert read.gaps == 1
    assert read.problems[0].startswith(f"frame 2 at offset {STARTS[2]} is damaged: {why}")
    assert not read.complete


@pytest.mark.parametrize("magic", [0x184D2A53, container.TRAILER_MAGIC, container.SEEK_TABLE_MAGIC])
def test_a_skippable_frame_of_4_gib(magic: int) -> None:
    claim = container.SKIPPABLE_HEAD.pack(magic, 0xFFFFFFFF)
    read = Read(SMALL[: STARTS[2]] + claim + SMALL[STARTS[2] :])
    assert read.frames[:1] == FRAMES[:1]
    assert not read.complete


def test_a_header_of_4_gib() -> None:
    claim = container.SKIPPABLE_HEAD.pack(container.HEADER_MAGIC, 0xFFFFFFFF)
    assert refused(claim + SMALL) == (
        "cannot read the recording: its header is damaged: it claims 4294967295 bytes, more than the 1048576 that are "
        "accepted (zstd -dc may still give the events)"
    )


@pytest.mark.parametrize("size", [0, 8, 9 + 7, 9 + 16])
def test_seek_tables_that_are_none(size: int) -> None:
    read = Read(SMALL[: STARTS[5]] + container.skippable(container.SEEK_TABLE_MAGIC, bytes(size)))
    assert read.frames == FRAMES
    assert read.trailer == TRAILER
    assert read.problems == [
        "its seek table does not match its frames"
        if size == 25
        else f"the metadata at offset {STARTS[5]} is damaged: it is no seek table"
    ]


@pytest.mark.parametrize("tail", [b"x", bytes(100), SMALL], ids=["a byte", "zeros", "another recording"])
def test_what_follows_the_end(tail: bytes) -> None:
    read = Read(SMALL + tail)
    assert read.frames == FRAMES
    assert read.problems == [f"something else follows the recording at offset {len(SMALL)}; it was not read"]


def test_a_recording_inside_another() -> None:
    read = Read(SMALL[: STARTS[3]] + SMALL)
    assert read.frames == FRAMES[:2]
    assert not read.complete


def test_frames_after_the_trailer() -> None:
    read = Read(SMALL[: STARTS[5]] + SMALL[STARTS[1] :])
    assert read.frames == FRAMES
    assert not read.complete


def test_a_frame_that_is_missing_or_twice_is_noticed() -> None:
    for data in (SMALL[: STARTS[2]] + SMALL[STARTS[3] :], SMALL[: STARTS[2]] + SMALL[STARTS[1] :]):
        assert Read(data).problems == ["its seek table does not match its frames"]


@pytest.mark.parametrize("frame", [1, 2, 3])
def test_peaks_are_of_all_that_was_recorded_whatever_is_damaged(frame: int) -> None:
    """What is left of the events adds up to less, or to fewer kinds of memory."""
    peak = {"rss_bytes": 9, "anon_bytes": 4, "file_bytes": 5, "shmem_bytes": 0, "swap_bytes": 1, "at_ns": 7}
    trailer = {"peak": peak | {"processes": 2}, "rmap_peak": None}
    data = bytearray(recording(*FRAMES, trailer=trailer))
    data[(starts(bytes(data))[frame] + starts(bytes(data))[frame + 1]) // 2] ^= 0xFF
    found = memtrack.open(io.BytesIO(data))
    assert not found.complete
    assert found.trailer
    assert found.report()["peak"] == trailer["peak"]
    # Nor has it a layer that the header does not know of.
    trailer = {"rmap_peak": trailer["peak"]}
    for tier in ("folio", None):
        sources = {"rmap": {"tier": tier, "hooks": ["x"], "reason": None}}
        data = bytearray(recording(*FRAMES, header={"sources": sources}, trailer=trailer))
        data[(starts(bytes(data))[frame] + starts(bytes(data))[frame + 1]) // 2] ^= 0xFF
        assert memtrack.open(io.BytesIO(data)).report()["rmap_peak"] == (trailer["rmap_peak"] if tier else None)
    # What is no peak in a trailer stands for none.
    for bad in ({}, peak, peak | {"processes": "2"}, peak | {"processes": 1 << 63}, [9], None):
        data = bytearray(recording(*FRAMES, trailer={"peak": bad}))
        data[(starts(bytes(data))[frame] + starts(bytes(data))[frame + 1]) // 2] ^= 0xFF
        assert memtrack.open(io.BytesIO(data)).peak.rss_bytes != 9


def test_damage_in_many_places_comes_to_an_end() -> None:
    bad, _ = CLAIMS["no content"]
    read = Read(SMALL[:HEADER_END] + bad * 100_000 + SMALL[HEADER_END:])
    assert read.problems[-2] == "more than 100 places are damaged; the rest was not read"
    assert len(read.problems) == 103


def test_noise_between_frames_is_passed_over() -> None:
    noise = bytes(range(256)) * 1000
    read = Read(SMALL[: STARTS[2]] + noise + SMALL[STARTS[2] :])
    assert read.frames == FRAMES
    assert read.problems == [f"the metadata at offset {STARTS[2]} is damaged: no frame starts there"]


def test_reading_that_fails_midway() -> None:
    class Failing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() >= STARTS[3]:
                raise OSError(5, os.strerror(5))
            return super().read(min(size or 0, STARTS[3] - self.tell()))

    reader = Reader(Failing(SMALL))
    assert list(reader.frames()) == FRAMES[:2]
    assert reader.problems[0] == f"reading fails after offset {STARTS[3]}: input/output error"
    assert not reader.complete


@pytest.mark.parametrize("kind", ["missing", "directory", "nul"])
def test_paths_that_are_none(kind: str, tmp_path: Path) -> None:
    paths: dict[str, str | Path] = {"missing": tmp_path / "none", "directory": tmp_path, "nul": "a\0b"}
    with pytest.raises(RecordingError, match="cannot read"):
        memtrack.open(paths[kind])


# --- memory -----------------------------------------------------------------------------------------------------------


def bombs() -> Iterator[tuple[str, bytes]]:
    for name, (frame, _) in CLAIMS.items():
        yield name, SMALL[:HEADER_END] + frame * 3 + SMALL[HEADER_END:]
    # What is accepted, and is as large as may be: 16 MiB of records in a few bytes.
    content = bytes([14]) + bytes(47)
    largest = zstandard.ZstdCompressor(write_checksum=True).compress(content * (container.MAX_FRAME_BYTES // 48))
    yield "largest frames", SMALL[:HEADER_END] + largest * 4 + SMALL[HEADER_END:]
    yield "deep header", with_header(b"[" * container.MAX_METADATA_BYTES)
    yield "wide header", with_header(b"[" + b"{}," * (container.MAX_METADATA_BYTES // 3 - 2) + b"{}]")
    yield "raw", SMALL[:HEADER_END] + ZSTD_MAGIC + b"\xe4" + (48 << 18).to_bytes(8, "little") + bytes(3) * (6 << 20)


BOMBS = dict(bombs())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss is in KiB on Linux")
@pytest.mark.parametrize("name", BOMBS)
def test_memory_is_bounded(name: str, tmp_path: Path) -> None:
    """A process of its own, since what counts is its peak: at most one frame's input, copy and output, and the base."""
    path = tmp_path / "bomb.zst"
    path.write_bytes(BOMBS[name])
    code = f"""
import resource
import memtrack
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    memtrack.open({str(path)!r})
except memtrack.RecordingError:
    pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    # A frame of 16 MiB as it is read, its copy, what it becomes, and once more what is cut from it.
    assert int(done.stdout) << 10 < 4 * container.MAX_FRAME_BYTES + (16 << 20), name


def test_reading_a_long_recording_needs_no_more_memory_than_a_short_one(tmp_path: Path) -> None:
    frame = b"".join(
        events.encode(events.Figure(EventType.RSS, number, 10, 10, ANON, number)) for number in range(20_000)
    )
    peaks = []
    for frames in (2, 40):
        path = tmp_path / f"{frames}.zst"
        path.write_bytes(recording(*[frame] * frames))
        code = (
            "import resource, memtrack\n"
            f"memtrack.open({str(path)!r})\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        )
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        peaks.append(int(done.stdout))
    # 38 frames more are 38 MB of records; pages of the allocator's are all that may differ.
    assert peaks[1] - peaks[0] < 4 << 10


def test_the_checksum_is_crc32() -> None:
    """As documented: over everything before the last member's name."""
    packed = container.pack_metadata({"a": 1})
    before = packed[: packed.index(b'"crc32"')]
    assert json.loads(packed)["crc32"] == f"{zlib.crc32(before):08x}"
