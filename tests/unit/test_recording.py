"""Recordings as the library gives them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import memtrack
from memtrack import container, events, recording
from memtrack.errors import RecordingError
from memtrack.events import EventType
from memtrack.recording import Status
from memtrack.timeline import Timeline
from memtrack.tracefile import Writer
from tests.unit import streams
from tests.unit.streams import ANON, HEADER, MIB, SOURCES, TRAILER, Stream

STREAM = Stream().root(10, file=MIB).rss(10, ANON, 2 * MIB).fork(11, 10).sync(11, anon=2 * MIB).exit(11, 9).exit(10)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "run.zst"
    path.write_bytes(streams.recording(STREAM.data[: 5 * 48], STREAM.data[5 * 48 :]))
    return path


@pytest.mark.parametrize("as_text", [True, False])
def test_open(path: Path, as_text: bool) -> None:
    found = memtrack.open(str(path) if as_text else path)
    assert found.complete
    assert found.problems == []
    assert (found.peak.rss_bytes, found.peak.anon_bytes, found.peak.file_bytes) == (5 * MIB, 4 * MIB, MIB)
    assert [process.pid for process in found.processes] == [10, 11]
    assert found.command == ["job", "\udcff"]
    assert found.status == Status(exit_code=0, signal=None)
    assert (found.page_size, found.lost_events, found.processes_left) == (4096, 0, 0)
    assert (found.start_ns, found.end_ns, found.duration_ns) == (1_000_000, 2_000_000, 1_000_000)
    assert found.event_counts == {"RSS": 1, "FORK": 2, "EXEC": 1, "EXIT": 2, "SYNC": 8}
    assert found.sources == SOURCES
    assert found.rmap_peak is None
    assert repr(found) == "<memtrack.Recording of ['job', '\\udcff']: peak 5242880 bytes, 2 processes, complete>"


def test_events_are_read_again_and_again(path: Path) -> None:
    found = memtrack.open(path)
    for _ in range(2):
        assert list(found.events()) == list(events.decode(STREAM.data))


def test_no_file_stays_open(path: Path) -> None:
    """Tests make warnings errors, and a file that is not closed warns."""
    next(memtrack.open(path).events())


def test_events_of_a_file_that_went_away(path: Path) -> None:
    found = memtrack.open(path)
    path.unlink()
    with pytest.raises(RecordingError, match="no such file"):
        next(found.events())


def test_a_context_manager_closes_a_file_object(path: Path) -> None:
    with path.open("rb") as file, memtrack.open(file) as found:
        assert len(list(found.events())) == len(STREAM.data) // 48
    assert file.closed
    assert found.peak.rss_bytes == 5 * MIB
    with pytest.raises(RecordingError, match="cannot be read again"):
        next(found.events())


@pytest.mark.parametrize("named", [True, False])
def test_what_has_just_been_written(named: bool, path: Path) -> None:
    """As the recorder has it: the figures were computed while recording, the file is read for its events only."""
    with path.open("wb", buffering=0) if named else tempfile.TemporaryFile() as file:
        writer = Writer(file, HEADER)
        writer.write_frame(STREAM.data)
        writer.finish(TRAILER)
        timeline = Timeline.of_header(writer.header)
        timeline.feed(STREAM.data)
        found = recording.of(file, writer.header, TRAILER, timeline.result())
        assert found.complete
        assert found.report() == memtrack.open(io.BytesIO(streams.recording(STREAM.data))).report()
        assert list(found.events()) == list(events.decode(STREAM.data))
        found.close()


def test_what_could_not_be_written_to_its_end() -> None:
    writer = Writer(file := io.BytesIO(), HEADER)
    found = recording.of(file, writer.header, None, Timeline.of_header(writer.header).result(), ["disk full"])
    assert not found.complete
    assert found.problems == ["disk full"]
    assert found.status == Status(None, None)


def test_lost_events_are_those_of_the_file_or_more() -> None:
    """What was lost after the last record is in the trailer only; without it, the records say what they can."""
    data = Stream().root(10).lost(3).data
    assert memtrack.open(io.BytesIO(streams.recording(data, trailer={"lost_events": 5}))).lost_events == 5
    assert memtrack.open(io.BytesIO(streams.recording(data, trailer={"lost_events": 0}))).lost_events == 3


def test_a_recording_without_its_end(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: data.index(container.TRAILER_MAGIC.to_bytes(4, "little"))])
    found = memtrack.open(path)
    assert not found.complete
    assert found.status == Status(None, None)
    last_ns = 1_000_000 + (len(STREAM.data) // 48 - 1) * 1000
    assert (found.end_ns, found.duration_ns) == (last_ns, last_ns - 1_000_000)


def test_a_clock_that_went_backwards() -> None:
    found = memtrack.open(io.BytesIO(streams.recording(STREAM.data, trailer={"end_ns": 5})))
    assert found.duration_ns == 0


def test_layers_that_were_not_recorded() -> None:
    off = {"tier": None, "hook": None, "reason": "refused"}
    data = Stream().root(10, anon=MIB).rmap(10, ANON, 1, 0x1000).data
    found = memtrack.open(io.BytesIO(streams.recording(data, header={"sources": {**SOURCES, "rss": off}})))
    assert found.peak.rss_bytes is None
    assert found.sources["rss"] == off
    on = {"tier": "folio", "hooks": ["fentry/folio_add_anon_rmap_ptes"], "reason": None}
    found = memtrack.open(io.BytesIO(streams.recording(data, header={"sources": {**SOURCES, "rmap": on}})))
    assert found.rmap_peak is not None
    assert found.rmap_peak.rss_bytes == MIB + 4096
    assert found.processes[0].rmap_last is not None


def test_other_byte_orders_and_page_sizes() -> None:
    other: events.ByteOrder = "big" if sys.byteorder == "little" else "little"
    data = Stream(other).root(10, anon=MIB).exit(10).data
    file = io.BytesIO(streams.recording(data, header={"byte_order": other, "page_size": 65536}))
    found = memtrack.open(file)
    assert found.peak.rss_bytes == MIB
    assert found.page_size == 65536
    assert [event.type for event in found.events()][-1] == EventType.EXIT


def test_reading_needs_no_extension_and_no_recorder(path: Path) -> None:
    code = f"""
import sys
sys.modules["memtrack._native"] = None
import memtrack
found = memtrack.open({str(path)!r})
print(found.peak.rss_bytes, len(list(found.events())), "memtrack.recorder" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == f"{5 * MIB} {len(STREAM.data) // 48} False\n"


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="no /dev/fd")
def test_through_a_pipe(path: Path) -> None:
    readable, writable = os.pipe()
    os.write(writable, path.read_bytes())
    os.close(writable)
    try:
        found = memtrack.open(f"/dev/fd/{readable}")
        assert found.complete
    finally:
        os.close(readable)
