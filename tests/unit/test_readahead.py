"""Reading in two threads gives what reading in one does, and leaves none behind."""

from __future__ import annotations

import io
import os
import threading

import pytest

import memtrack
from memtrack import readahead, recording
from memtrack.reader import Reader
from tests.unit import streams
from tests.unit.streams import ANON, Stream

FRAMES = [Stream().root(10).rss(10, ANON, number << 20).data * (1 + number % 7) for number in range(50)]
DATA = streams.recording(*FRAMES)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "memtrack-read"]


def test_the_same_frames_in_order() -> None:
    reader = Reader(io.BytesIO(DATA))
    assert [bytes(view) for view in readahead.views(reader)] == FRAMES
    assert reader.complete
    assert threads() == []


def test_a_view_is_good_until_the_next() -> None:
    reader = Reader(io.BytesIO(DATA))
    for view, frame in zip(readahead.views(reader), FRAMES, strict=True):
        for _ in range(100):
            assert view == frame


def test_damage_is_told_as_in_one_thread() -> None:
    damaged = bytearray(DATA)
    damaged[len(DATA) // 2] ^= 1
    ahead, plain = Reader(io.BytesIO(damaged)), Reader(io.BytesIO(damaged))
    assert [bytes(view) for view in readahead.views(ahead)] == list(plain.frames())
    assert ahead.problems == plain.problems != []


def test_a_damaged_frame_spoils_no_view() -> None:
    starts = [place for place in range(len(DATA)) if DATA.startswith(b"\x28\xb5\x2f\xfd", place)]
    damaged = bytearray(DATA)
    for start in starts[2::3]:
        damaged[start + 40] ^= 1
    reader = Reader(io.BytesIO(damaged))
    held = before = None
    for view in reader.views(2):
        assert held == before
        held, before = view, bytes(view)
    assert len(reader.problems) > 10


@pytest.mark.parametrize("count", [0, 1, 3])
def test_leaving_early(count: int) -> None:
    reader = Reader(io.BytesIO(DATA))
    views = readahead.views(reader)
    for _ in range(count):
        next(views)
    views.close()
    assert threads() == []
    assert not reader.complete


def test_a_failure_is_raised_where_frames_are_taken() -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 1000:
                raise KeyError("broken")
            return super().read(min(size or 0, 700))

    with pytest.raises(KeyError, match="broken"):
        list(readahead.views(Reader(Broken(DATA))))
    assert threads() == []


def test_a_pipe_is_read_in_one_thread() -> None:
    """A thread that waits for a writer could be waited for without end, whatever else happens."""
    readable, writable = os.pipe()
    os.write(writable, DATA[:-1])
    with os.fdopen(readable, "rb", buffering=0) as file:
        reader = Reader(file)
        views = readahead.views(reader)
        assert next(views) == FRAMES[0]
        assert threads() == []
        views.close()
    os.close(writable)


def test_a_system_that_gives_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert memtrack.open(io.BytesIO(DATA)).event_counts["RSS"] == sum(1 + number % 7 for number in range(50))


def test_no_memory_is_an_error_of_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def feed(self, _: object) -> None:
            raise MemoryError

    monkeypatch.setattr("memtrack.reducer.of_header", lambda _: Full())
    with pytest.raises(memtrack.RecordingError, match="needs more memory than there is"):
        recording.open(io.BytesIO(DATA))
    assert threads() == []
