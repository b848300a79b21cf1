"""Records a process tree: loads the probes, starts or adopts processes, and writes the recording."""

from __future__ import annotations

import io
import os
import platform
import resource
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, cast

from memtrack import features, invoker, loader, losses, recording, reducer, spawn
from memtrack.consumer import Consumer
from memtrack.detail import EVERY_EVENT, TOTALS_ONLY, Detail, at_resolution
from memtrack.errors import FeatureError, MemtrackError, OutputError, UsageError
from memtrack.events import MarkKind, Member, mark, peak
from memtrack.figures import Figures, Peak
from memtrack.hooks import Plan
from memtrack.invoker import Invoker
from memtrack.loader import MAX_PROCESSES, Probes
from memtrack.recording import Recording
from memtrack.ringbuf import RingBuffer
from memtrack.spawn import Argument, Process
from memtrack.version import VERSION
from memtrack.writer import Writer, complete_header

# A record and its header take 56 bytes of the ring: this holds 600,000 page faults that the consumer is late for.
RING_BYTES = 32 << 20
# All CPUs write into it: twice the size from 16 CPUs on, four times from 32, which is the largest.
RING_CPUS = 8
RING_BYTES_MOST = 128 << 20
# ... but not more than this part of the machine's memory.
RING_PART_OF_MEMORY = 64

# The kernel's own limit on processes (PID_MAX_LIMIT); the tables for so many take 5 GiB.
_MAX_PROCESSES = 4 << 20

# pid_t has 31 bits and no kernel's pid_max is above it.
_PID_MAX = (1 << 31) - 1

# Either turns the rmap layer on; the second is what existing users of these events set.
RMAP_VARIABLES = ("MEMTRACK_TRACK_RMAP", "CODSPEED_MEMTRACK_TRACK_RMAP")


class Tracker:
    """Owns the probes while it is entered, and the recording that they fill.

    Everything that `spawn` starts, everything that `adopt` takes in, and whatever those fork belongs to one tree. After
    the `with` block `recording` has the result. The methods may be called from any thread.

        with memtrack.Tracker() as tracker:
            tracker.spawn(["./job"]).wait()
        print(tracker.recording.peak.rss_bytes)
    """

    def __init__(
        self,
        output: BinaryIO | None = None,
        *,
        rmap: bool | None = None,
        events: bool = True,
        resolution: str | None = None,
        ring_bytes: int | None = None,
        max_processes: int = MAX_PROCESSES,
        command: Sequence[Argument] = (),
        invoking_user: Invoker | None = None,
    ) -> None:
        """`output` is a writable binary file that stays the caller's; without it the recording is a temporary file,
        which goes away with `recording`.

        `rmap` also rebuilds RSS from the reverse map; None means what the environment says, where there are events.
        Without `events` there is no record per change and no file: processes, totals and peaks only, at the least cost.
        `resolution`, as in "64KiB" or "1ms", has a record only where a counter moved by that much, or moved after that
        time; peaks and last figures stay exact. `ring_bytes` is a power of two of whole pages. `max_processes` is how
        many processes of the tree may live at one time; what is beyond is counted and not recorded. `command` is what
        the recording's header says it is of. Commands run as `invoking_user`, who is this process's own user if not
        given.
        """
        _check_is_binary_file(output)
        self._output = output
        self._rmap = events and rmap_wanted() if rmap is None else rmap
        self._detail = _detail(events, resolution)
        if not events and (output is not None or self._rmap):
            raise UsageError(
                "without events there is neither a recording file nor a rmap layer", "leave out output and rmap"
            )
        self._ring_bytes = _ring_bytes(ring_bytes)
        if not isinstance(max_processes, int) or not 0 < max_processes <= _MAX_PROCESSES:
            raise UsageError(f"room for {max_processes} processes is not possible", f"1 to {_MAX_PROCESSES} is")
        self._max_processes = max_processes
        self._command = [os.fsdecode(argument) for argument in command]
        self._invoker = invoking_user or invoker.current()
        self._lock = threading.Lock()
        self._probes: Probes | None = None
        self._ring: RingBuffer | None = None
        self._recording: Recording | None = None
        self._root: Process | None = None
        self._file: BinaryIO | None = None
        self._writer: Writer | None = None
        self._write_failure: MemtrackError | None = None
        self._end_failure: MemtrackError | None = None
        self._losses: dict[str, int] = {}
        self._shortcomings: list[str] = []
        self._doubts: list[str] = []
        self._adopted_in_part = False

    def __enter__(self) -> Tracker:
        if self._recording is not None or self._probes is not None:
            raise UsageError("a tracker can be entered once", "make another")
        with _memlock_limit_kept():
            self._probes = loader.load(
                features.probe(kallsyms=features.KALLSYMS if self._rmap else None),
                rmap=self._rmap,
                ring_bytes=self._ring_bytes,
                detail=self._detail,
                max_processes=self._max_processes,
            )
        try:
            self._ring = RingBuffer(self._probes.ring_fd, self._ring_bytes)
            self._start_ns = time.monotonic_ns()
            header = complete_header(self._header())
            if self._detail.events:
                self._file = self._output or _temporary_file()
                self._writer = Writer(self._file, header)
            self._complete_header = header
            self._timeline = reducer.of_header(header)
            self._consumer = Consumer(self._probes, self._ring, self._take)
            self._consumer.start()
        except BaseException:
            self._unload()
            raise
        _of_this_process.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._probes is None:  # a fork's child comes by
            return
        left = 0
        try:
            try:
                self._probes.detach_all_but_iterators()
            finally:
                # Always: its threads use what is unloaded next. What lives on has its last figures and its peak.
                self._consumer.stop(self._last_records, sync=not self._detail.every_event)
            tally = self._probes.tally()
            left = tally.members
            self._losses = losses.counts(tally, self._probes.skipped())
            self._shortcomings = losses.shortcomings(tally, self._max_processes, adopted_in_part=self._adopted_in_part)
            self._doubts = losses.doubts(tally, features.possible_cpus() or 1)
        except MemtrackError as failure:
            self._end_failure = failure
        finally:
            # Interrupted while it waited for the threads, it leaves them what they use until the process ends.
            if not self._consumer.is_running:
                self._unload()
        self._finish(left)
        if self._failure is not None and error is None:
            raise self._failure

    @property
    def plan(self) -> Plan:
        """What is recorded and how, and why not more."""
        return self._entered().plan

    @property
    def recording(self) -> Recording:
        """The result, once the tracker has been left."""
        if self._recording is None:
            raise UsageError("there is no recording before the tracker is left")
        return self._recording

    def spawn(self, command: Sequence[Argument], **options: Any) -> Process:
        """Starts a command as a root of the tree and returns its subprocess.Popen.

        It is tracked from its first instruction on; nothing of the caller's memory counts, however it was forked.
        `options` are Popen's. Raises CommandError where it cannot be started.
        """
        probes = self._entered()
        with self._lock:
            probes.set_spawner(threading.get_native_id())
            try:
                process = spawn.start(command, self._invoker, **options)
            finally:
                probes.set_spawner(0)
        self._root = self._root or process
        return process

    def adopt(self, pid: int) -> int:
        """Takes in a process that already runs, and its descendants; returns how many processes that were.

        Their figures start at what they hold now. Those for whom there is no room follow when there is, and the
        recording will not be complete. Raises UsageError where no such process can be seen.
        """
        probes = self._entered()
        if probes.plan.adopt.reason:
            raise UsageError(f"cannot adopt a process: {probes.plan.adopt.reason}")
        if not 0 < pid <= _PID_MAX:
            raise UsageError(f"cannot adopt process {pid}: no process has such a number")
        with self._lock:
            before = probes.tally().put_off
            adopted = probes.adopt(pid)
            if probes.tally().put_off != before:  # for want of room in the tables, or in the ring
                self._adopted_in_part |= not probes.adopt_children()
                self._consumer.go_on_later()
        if not adopted:
            raise UsageError(
                f"cannot adopt process {pid}: there is none with memory of its own, or it belongs to the tree already"
            )
        return adopted

    def mark(self, label: str, kind: MarkKind = MarkKind.INSTANT) -> None:
        """Puts a label into the recording, cut to 20 bytes of UTF-8; into none where only totals are recorded."""
        self._entered()
        if not isinstance(label, str):
            raise TypeError(f"a label is text, and not {label!r}")
        now = time.monotonic_ns()
        self._consumer.mark(now, mark(now, os.getpid(), threading.get_native_id(), kind, label))

    def totals(self) -> tuple[Figures, Peak]:
        """What the tree holds at this instant, and the most that it has held so far.

        Raises FeatureError where the kernel side keeps no totals (before Linux 6.2).
        """
        probes = self._entered()
        if not probes.keeps_totals:
            raise FeatureError("this kernel keeps no totals", "they need Linux 6.2 or later")
        totals, page = probes.tree(), os.sysconf("SC_PAGESIZE")
        held = _figures(totals.peak_pages, page)
        observed = totals.peak_at_ns > 0
        top = Peak(
            held.rss_bytes,
            held.anon_bytes,
            held.file_bytes,
            held.shmem_bytes,
            held.swap_bytes,
            at_ns=totals.peak_at_ns if observed else None,
            processes=totals.peak_processes if observed else None,
        )
        return _figures(totals.pages, page), top

    @property
    def members(self) -> int:
        """How many processes of the tree live."""
        return self._entered().tally().members

    @property
    def lost_events(self) -> int:
        """Events lost so far."""
        self._entered()
        return self._consumer.lost_events

    @property
    def write_failure(self) -> MemtrackError | None:
        """Why the recording could not be written on, while processes are still tracked."""
        return self._write_failure

    def _entered(self) -> Probes:
        if self._recording is not None:
            raise UsageError("the tracker has been left", "make another, and use it within its with block")
        if self._probes is None:
            raise UsageError("the tracker is not entered", "use it as a context manager")
        return self._probes

    def _header(self) -> dict[str, Any]:
        return {
            "page_size": os.sysconf("SC_PAGESIZE"),
            "clock": "CLOCK_MONOTONIC",
            "clock_offset_ns": time.time_ns() - time.monotonic_ns(),
            "start_ns": self._start_ns,
            "kernel": platform.release(),
            "machine": platform.machine(),
            "command": self._command,
            "detail": self._detail.header(),
            "sources": self._entered().plan.sources(),
            "recorder": {"version": VERSION, "pid": os.getpid(), "ring_bytes": self._ring_bytes},
        }

    def _last_records(self) -> bytes:
        """What the kernel side kept of the tree's peak, where the records do not tell it."""
        probes = self._entered()
        if not probes.keeps_totals or (self._detail.every_event and not self._consumer.lost_events):
            return b""
        totals = probes.tree()
        if not totals.peak_at_ns:
            return b""
        page, now = os.sysconf("SC_PAGESIZE"), time.monotonic_ns()
        return b"".join(
            peak(now, member, pages * page, totals.peak_at_ns, totals.peak_processes)
            for member, pages in enumerate(totals.peak_pages)
        )

    def _take(self, events: memoryview) -> None:
        """The consumer's sink. A full disk must not cost the summary, so the timeline goes on without the file."""
        if self._writer is not None and self._write_failure is None:
            try:
                self._writer.write_frame(events)
            except MemtrackError as failure:
                self._write_failure = failure
        self._timeline.feed(events)

    def _finish(self, members_left: int) -> None:
        summary = self._timeline.result()
        trailer = {
            "events": summary.events,
            "lost_events": self._consumer.lost_events,
            "losses": self._losses,
            "status": _status(self._root),
            "end_ns": time.monotonic_ns(),
            "peak": asdict(summary.peak),
            "rmap_peak": None if summary.rmap_peak is None else asdict(summary.rmap_peak),
            "processes_left": members_left,
            "problems": self._shortcomings,
            "doubts": self._doubts,
        }
        if self._writer is not None and self._failure is None:
            try:
                self._writer.finish(trailer)
            except MemtrackError as error:
                self._write_failure = error
        problems = [] if self._failure is None else [str(self._failure)]
        self._recording = recording.of(self._file, self._complete_header, trailer, summary, problems)

    @property
    def _failure(self) -> BaseException | None:
        return self._write_failure or self._consumer.failure or self._end_failure

    def _unload(self) -> None:
        if self._ring is not None:
            self._ring.close()
        if self._probes is not None:
            self._probes.close()
        self._probes = self._ring = None


# What libbpf has raised RLIMIT_MEMLOCK to, if it has, and who may load meanwhile.
_memlock_raised: tuple[int, int] | None = None
_loading = threading.Lock()

# Those that are entered, or were.
_of_this_process: weakref.WeakSet[Tracker] = weakref.WeakSet()


def _forsake_in_child() -> None:
    """A fork of the process that tracks must not keep the probes attached when that has ended."""
    global _loading
    _loading = threading.Lock()  # nobody in the child would give it back
    for tracker in _of_this_process:
        tracker._unload()


os.register_at_fork(after_in_child=_forsake_in_child)


@contextmanager
def _memlock_limit_kept() -> Iterator[None]:
    """Before Linux 5.11 libbpf raises RLIMIT_MEMLOCK, on which maps count there: the command must not inherit that, nor
    whoever else this process is. What is loaded stays.

    It does so once in a process's life, so for the next load it is done here.
    """
    global _memlock_raised
    with _loading:
        before = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        if _memlock_raised is not None:
            with suppress(OSError, ValueError):  # the right to do so is gone; the load will say so
                resource.setrlimit(resource.RLIMIT_MEMLOCK, _memlock_raised)
        try:
            yield
        finally:
            after = resource.getrlimit(resource.RLIMIT_MEMLOCK)
            if after != before:
                _memlock_raised = after
                resource.setrlimit(resource.RLIMIT_MEMLOCK, before)


def record(
    command: Sequence[Argument],
    *,
    rmap: bool | None = None,
    events: bool = True,
    resolution: str | None = None,
    ring_bytes: int | None = None,
    max_processes: int = MAX_PROCESSES,
    output: BinaryIO | None = None,
    **options: Any,
) -> Recording:
    """Runs a command to its end and returns the recording of its process tree.

    `options` are subprocess.Popen's; the others are Tracker's. Raises CommandError where the command cannot be started;
    its own failure is no error, see `Recording.status`. As with subprocess.run, the command is killed where an
    exception, KeyboardInterrupt for example, ends the waiting for it.
    """
    for stream in ("stdin", "stdout", "stderr"):
        if options.get(stream) == subprocess.PIPE:  # a full pipe, or a read from it, would last for ever
            raise UsageError(f"nobody is at the other end of a pipe as {stream}", "give a file, or use Tracker.spawn")
    with Tracker(
        output,
        rmap=rmap,
        events=events,
        resolution=resolution,
        ring_bytes=ring_bytes,
        max_processes=max_processes,
        command=command,
    ) as tracker:
        try:
            tracker.spawn(command, **options).wait()
        except BaseException:
            if tracker._root:
                tracker._root.kill()
                tracker._root.wait()
            raise
    return tracker.recording


def rmap_wanted() -> bool:
    """Whether the environment asks for the rmap layer."""
    return any(os.environ.get(name) == "1" for name in RMAP_VARIABLES)


def _check_is_binary_file(output: object) -> None:
    if output is not None and (isinstance(output, io.TextIOBase) or not hasattr(output, "write")):
        raise UsageError("the output is not a binary file", 'open(path, "w+b") gives one')


def _detail(events: bool, resolution: str | None) -> Detail:
    if resolution is None:
        return EVERY_EVENT if events else TOTALS_ONLY
    if not events:
        raise UsageError("a resolution is one of events", "leave one of the two out")
    if not isinstance(resolution, str):
        raise UsageError(
            f"a resolution of {resolution!r} is not known", "give a size or a time, as in '64KiB' or '1ms'"
        )
    return at_resolution(resolution)


def _figures(pages: Sequence[int], page_bytes: int) -> Figures:
    file, anon, swap, shmem = (pages[member] * page_bytes for member in Member)
    return Figures(file + anon + shmem, anon, file, shmem, swap)


class _TemporaryFile(io.FileIO):
    """A file without a name, which goes away with whoever holds it last: a recording need not be closed."""

    def __del__(self) -> None:
        self.close()


def _temporary_file() -> BinaryIO:
    try:
        fd, name = tempfile.mkstemp(prefix="memtrack-")
        Path(name).unlink()
    except OSError as error:
        raise OutputError(
            f"cannot make a temporary file for the recording: {str(error.strerror).lower()}",
            "set TMPDIR, or give an output",
        ) from error
    return cast(BinaryIO, _TemporaryFile(fd, "rb+"))


def default_ring_bytes(page_bytes: int, memory_bytes: int, cpus: int) -> int:
    """A power of two that suits the machine."""
    times = 1 << (max(cpus // RING_CPUS, 1).bit_length() - 1)
    part = 1 << ((memory_bytes // RING_PART_OF_MEMORY).bit_length() - 1)
    return max(page_bytes, min(RING_BYTES * times, RING_BYTES_MOST, part))


def _ring_bytes(wanted: int | None) -> int:
    page = os.sysconf("SC_PAGESIZE")
    if wanted is None:
        return default_ring_bytes(page, page * os.sysconf("SC_PHYS_PAGES"), os.cpu_count() or 1)
    if not isinstance(wanted, int):
        raise UsageError(f"ring_bytes is a number, and not {wanted!r}", "64 << 20 are 64 MiB")
    if wanted < page or wanted & (wanted - 1) or wanted > 1 << 30:
        raise UsageError(f"a ring of {wanted} bytes is not possible", f"use a power of two from {page} to {1 << 30}")
    return wanted


def _status(root: Process | None) -> dict[str, int | str | None]:
    code = None if root is None else root.returncode
    if code is None:
        return {"exit_code": None, "signal": None}
    if code < 0:
        return {"exit_code": None, "signal": -code}
    return {"exit_code": code, "signal": None}
