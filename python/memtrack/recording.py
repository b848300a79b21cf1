"""A recording that has been read: its figures, and its events for whoever wants more."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, BinaryIO, NamedTuple

from memtrack import batches, layers, readahead, reducer, report, seek
from memtrack.errors import RecordingError, UsageError
from memtrack.events import ByteOrder, Event, decode
from memtrack.figures import Peak, Process, Result
from memtrack.reader import Reader


class Status(NamedTuple):
    """How the command ended; both None where it is not known. `signal` is the number of the one that ended it."""

    exit_code: int | None
    signal: int | None


class Recording:
    """What a recording says. Bytes are bytes, times are CLOCK_MONOTONIC nanoseconds, None is what was not observed.

    `complete` is false where anything of the file is missing or damaged, or a process was left out for want of room;
    `problems` says what. Lost events are another matter: `lost_events` counts them, and a complete recording may have
    some; it is None where the end is missing, which would tell. So it may have `doubts`, which say what figures may be
    off by.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | BinaryIO | None,
        header: dict[str, Any],
        trailer: dict[str, Any] | None,
        result: Result,
        problems: Sequence[str] = (),
    ) -> None:
        """`source` is what `events` reads, None where there are none; a file object is closed with the recording."""
        self._source = source
        self.header = header
        self.trailer = trailer
        self.problems = [*problems, *_texts(trailer or {}, "problems")]
        self.doubts = _texts(trailer or {}, "doubts")
        self.complete = trailer is not None and not self.problems
        self.peak: Peak = result.peak
        self.rmap_peak: Peak | None = result.rmap_peak
        self.processes: list[Process] = result.processes
        self.processes_left = result.processes_left
        self.event_counts = result.events
        end = trailer or {}
        lost_events = max(result.lost_events, end.get("lost_events", 0))
        self.lost_events: int | None = lost_events if lost_events or trailer is not None else None
        self.losses: dict[str, int] | None = end.get("losses")
        self.command: list[str] = header.get("command", [])
        self.page_size: int = header["page_size"]
        self.sources = _sources(header)
        self.start_ns: int | None = header.get("start_ns", result.first_ns)
        self.end_ns: int | None = end.get("end_ns", result.last_ns)
        status = end.get("status", {})
        self.status = Status(status.get("exit_code"), status.get("signal"))

    @functools.cached_property
    def layers(self) -> layers.Comparison | None:
        """How far the two memory layers agree; None where there are not two."""
        bound = layers.bound_bytes(self.page_size, self.sources["rss"]["tier"])
        return layers.compare(bound, self.peak, self.rmap_peak, self.processes)

    @property
    def duration_ns(self) -> int | None:
        """From the start of the recording to its end, or to the last event where the end is missing."""
        if self.start_ns is None or self.end_ns is None:
            return None
        return max(0, self.end_ns - self.start_ns)

    def events(self, from_ns: int | None = None, to_ns: int | None = None) -> Iterator[Event]:
        """Every event, in the order of the file, read again from it; or those of `from_ns` or later and before `to_ns`.

        Times are CLOCK_MONOTONIC, as in the events. What lies outside of them is passed over by the file's seek table,
        where that has one.

        A LOST event of count 0 stands where a damaged frame was left out. Raises RecordingError where the file can be
        read no more, and UsageError where none were recorded.
        """
        with self._reader() as reader:
            order: ByteOrder = reader.header["byte_order"]
            for frame in _frames(reader, from_ns, to_ns):
                for event in decode(frame, order):
                    if (from_ns is None or event.time_ns >= from_ns) and (to_ns is None or event.time_ns < to_ns):
                        yield event

    def batches(self, from_ns: int | None = None, to_ns: int | None = None) -> Iterator[Any]:
        """The same events as numpy arrays, some ten thousand in each, whose fields are those of `batches.dtype`.

            sum(int((batch["type"] == EventType.FORK).sum()) for batch in recording.batches())

        Raises UsageError without numpy, and what `events` raises.
        """
        with self._reader() as reader:
            layout = batches.dtype(reader.header["byte_order"])
            for frame in _frames(reader, from_ns, to_ns):
                batch = batches.between(batches.of_frame(bytes(frame), layout), from_ns, to_ns)
                if len(batch):
                    yield batch

    def _reader(self) -> Reader:
        if self._source is None:
            raise UsageError("only totals were recorded", "record with events")
        if not isinstance(self._source, (str, os.PathLike)):
            try:
                self._source.seek(0)
            except (OSError, ValueError) as error:  # a pipe; a closed file
                raise RecordingError("the recording cannot be read again", "record into a file") from error
        return Reader(self._source)

    def report(self) -> dict[str, Any]:
        """What `memtrack report --json` prints."""
        return report.to_json(self)

    def close(self) -> None:
        """Closes the file behind a recording that was made without a path. The figures stay."""
        if self._source is not None and not isinstance(self._source, (str, os.PathLike)):
            self._source.close()

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<memtrack.Recording of {self.command!r}: peak {self.peak.rss_bytes} bytes, "
            f"{len(self.processes)} processes, {'complete' if self.complete else 'not complete'}>"
        )


def open(path: str | os.PathLike[str] | BinaryIO) -> Recording:  # noqa: A001 # memtrack.open is the contract's name
    """Reads a recording, in memory bounded by the number of its processes.

    Raises RecordingError where nothing can be read. A file that was cut or damaged gives what is whole, and its
    recording is not `complete`.
    """
    with Reader(path) as reader:
        try:
            timeline = reducer.of_header(reader.header)
            for frame in readahead.views(reader):
                timeline.feed(frame)
            result = timeline.result()
            if reader.problems and reader.trailer:
                result = _with_peaks_of(reader.trailer, result)
        except MemoryError as error:  # so many processes
            raise RecordingError(
                f"cannot read {reader.name}: it needs more memory than there is", "zstd -dc still gives the events"
            ) from error
        return Recording(path, reader.header, reader.trailer, result, reader.problems)


def _with_peaks_of(trailer: dict[str, Any], result: Result) -> Result:
    """What was computed while recording is of all events, and so better than what can be made of the frames left."""
    if trailer.get("peak"):
        result = replace(result, peak=Peak(**trailer["peak"]))
    if result.rmap_peak is not None and trailer.get("rmap_peak"):  # None: there was no such layer
        result = replace(result, rmap_peak=Peak(**trailer["rmap_peak"]))
    return result


def of(
    file: BinaryIO | None,
    header: dict[str, Any],
    trailer: dict[str, Any] | None,
    result: Result,
    problems: Sequence[str] = (),
) -> Recording:
    """The recording that has just been written to `file`, without reading it; `trailer` is None if it has none.

    `file` is None where nothing but the figures was recorded.

    Where the file was opened for writing only, its name is what `Recording.events` opens.
    """
    name = getattr(file, "name", None)
    source = name if isinstance(name, str) and file is not None and not file.readable() else file
    return Recording(source, header, trailer, result, problems)


def _frames(reader: Reader, from_ns: int | None, to_ns: int | None) -> Iterator[memoryview]:
    """The frames that may have events of these times, and few others; each is good until the next is asked for."""
    order: ByteOrder = reader.header["byte_order"]
    if from_ns is not None:
        reader.seek(from_ns)
    for frame in reader.views():
        if to_ns is not None and seek.first_ns(frame, order) >= to_ns + seek.DISORDER_NS:
            return
        yield frame


def _sources(header: dict[str, Any]) -> dict[str, Any]:
    """The header's "sources", whole and of the types that the report promises."""
    sources = header.get("sources", {})
    rss, rmap, lifecycle = (sources.get(name, {}) for name in ("rss", "rmap", "lifecycle"))
    return {
        "rss": {"tier": _text(rss, "tier"), "hook": _text(rss, "hook"), "reason": _text(rss, "reason")},
        "rmap": {"tier": _text(rmap, "tier"), "hooks": _texts(rmap, "hooks"), "reason": _text(rmap, "reason")},
        "lifecycle": {"hooks": _texts(lifecycle, "hooks"), "reason": _text(lifecycle, "reason")},
    }


def _text(source: dict[str, Any], name: str) -> str | None:
    value = source.get(name)
    return value if isinstance(value, str) else None


def _texts(source: dict[str, Any], name: str) -> list[str]:
    value = source.get(name)
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
