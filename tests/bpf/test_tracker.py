"""The library's Tracker, used as it should not be: an error that says so, and nothing left behind."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import memtrack
from memtrack import CommandError, MemtrackError, OutputError, Tracker, UsageError
from memtrack.events import Mark

pytestmark = pytest.mark.bpf


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


USES: list[Callable[[Tracker], Any]] = [
    lambda tracker: tracker.spawn(["true"]),
    lambda tracker: tracker.adopt(1),
    lambda tracker: tracker.mark("x"),
    lambda tracker: tracker.plan,
    lambda tracker: tracker.members,
    lambda tracker: tracker.lost_events,
]


@pytest.mark.parametrize("use", USES)
def test_outside_its_block_it_tracks_nothing(use: Callable[[Tracker], Any]) -> None:
    tracker = Tracker()
    with pytest.raises(UsageError, match=r"^the tracker is not entered \(use it as a context manager\)$"):
        use(tracker)
    with tracker:
        pass
    with tracker.recording, pytest.raises(UsageError, match="the tracker has been left"):
        use(tracker)


def test_the_recording_is_there_afterwards_only() -> None:
    tracker = Tracker()
    with pytest.raises(UsageError, match="no recording before the tracker is left"):
        _ = tracker.recording
    with tracker, pytest.raises(UsageError, match="no recording before the tracker is left"):
        _ = tracker.recording
    with tracker.recording as recording:
        assert recording.complete
        assert recording.processes == []
        assert recording.peak.rss_bytes is None


def test_it_is_entered_once() -> None:
    with Tracker() as tracker, pytest.raises(UsageError, match=r"can be entered once \(make another\)"), tracker:
        pass
    with pytest.raises(UsageError, match="can be entered once"), tracker:
        pass
    with tracker.recording as recording:
        assert recording.complete


@pytest.mark.parametrize(
    "options", [{"ring_bytes": "64KiB"}, {"resolution": 65536}, {"max_processes": "many"}, {"max_processes": None}]
)
def test_options_of_another_type(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Tracker(**options)


def test_a_label_of_another_type() -> None:
    with Tracker() as tracker, pytest.raises(TypeError, match="a label is text, and not 5"):
        tracker.mark(5)  # type: ignore[arg-type]
    tracker.recording.close()


@pytest.mark.parametrize("size", [0, -1, 1, 4095, 4097, 3 << 12, 1 << 31, 1 << 80])
def test_a_ring_that_cannot_be(size: int) -> None:
    with pytest.raises(UsageError, match=rf"^a ring of {size} bytes is not possible \(use a power of two from "):
        Tracker(ring_bytes=size)


def test_a_ring_of_one_page_is_enough_for_the_truth() -> None:
    code = "import mmap; m = mmap.mmap(-1, 32 << 20)\nfor i in range(0, 32 << 20, 4096): m[i] = 1"
    page = os.sysconf("SC_PAGESIZE")
    with memtrack.record([sys.executable, "-c", code], ring_bytes=page) as recording:
        assert recording.complete
        assert recording.header["recorder"]["ring_bytes"] == page
        (process,) = recording.processes
        assert process.exit_code == 0
        # Whatever was lost, the figures were read anew from the kernel's.
        assert process.peak.rss_bytes is not None
        assert process.peak.rss_bytes >= 32 << 20


def test_commands_that_cannot_be_run_leave_the_tracker_as_it_was() -> None:
    with Tracker() as tracker:
        for command in (["no-such-program"], ["/"], ["true", "a\0b"]):
            with pytest.raises(CommandError):
                tracker.spawn(command)
        mistakes: list[Any] = ["true", b"true", []]
        for mistake in mistakes:
            with pytest.raises(UsageError):
                tracker.spawn(mistake)
        assert tracker.members == 0
        assert tracker.spawn(["sh", "-c", "exit 3"]).wait() == 3
    with tracker.recording as recording:
        assert [process.comm for process in recording.processes] == ["sh"]
        assert recording.status.exit_code == 3


def test_only_what_it_starts_itself_is_of_the_tree() -> None:
    with Tracker() as tracker:
        subprocess.run(["true"], check=True)
        tracker.spawn(["true"]).wait()
        subprocess.run(["true"], check=True)
        thread = threading.Thread(target=lambda: subprocess.run(["true"], check=True))
        thread.start()
        tracker.spawn(["false"]).wait()
        thread.join()
    with tracker.recording as recording:
        assert [process.comm for process in recording.processes] == ["true", "false"]


def test_commands_from_several_threads_at_once() -> None:
    with Tracker() as tracker:
        threads = [
            threading.Thread(target=lambda status=status: tracker.spawn(["sh", "-c", f"exit {status}"]).wait())
            for status in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with tracker.recording as recording:
        assert sorted(process.exit_code for process in recording.processes if process.exit_code is not None) == [
            *range(8)
        ]


def test_numbers_that_no_process_has() -> None:
    with Tracker() as tracker:
        for pid in (0, -1, -(1 << 40), 1 << 31, 1 << 80):
            with pytest.raises(UsageError, match=rf"^cannot adopt process {pid}: no process has such a number$"):
                tracker.adopt(pid)
    tracker.recording.close()


def test_processes_that_cannot_be_adopted(sleeper: subprocess.Popen[bytes]) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    kernel_threads = [2] if Path("/proc/2/cmdline").exists() and not Path("/proc/2/cmdline").read_bytes() else []
    with Tracker() as tracker:
        for pid in (gone.pid, zombie.pid, *kernel_threads):
            with pytest.raises(
                UsageError, match=rf"^cannot adopt process {pid}: there is none with memory of its own, or it belongs"
            ):
                tracker.adopt(pid)
        assert tracker.adopt(sleeper.pid) == 1
        with pytest.raises(UsageError, match="it belongs to the tree already"):
            tracker.adopt(sleeper.pid)
        child = tracker.spawn(["sleep", "60"])
        with pytest.raises(UsageError, match="it belongs to the tree already"):
            tracker.adopt(child.pid)
        child.kill()
        child.wait()
    zombie.wait()
    with tracker.recording as recording:
        assert [process.pid for process in recording.processes] == [sleeper.pid, child.pid]
        assert recording.processes_left == 1


def test_it_may_take_in_its_own_process() -> None:
    with Tracker() as tracker:
        assert tracker.adopt(os.getpid()) >= 1
        with mmap.mmap(-1, 16 << 20) as data:  # not from the heap, whose pages may have been touched before
            for offset in range(0, len(data), mmap.PAGESIZE):
                data[offset] = 1
            time.sleep(0.3)
    with tracker.recording as recording:
        (own,) = (process for process in recording.processes if process.pid == os.getpid())
        assert own.state == "alive"
        assert own.peak.rss_bytes is not None
        assert own.peak.rss_bytes > 16 << 20
        # Recording is itself at work in that process: it must not feed on itself.
        assert recording.event_counts["RSS"] < 50_000


def test_a_failure_in_the_block_is_the_callers_and_the_recording_is_there(tmp_path: Path) -> None:
    def fail(tracker: Tracker) -> None:
        with tracker:
            tracker.spawn(["true"]).wait()
            raise ZeroDivisionError

    with (tmp_path / "r").open("w+b") as output:
        tracker = Tracker(output)
        with pytest.raises(ZeroDivisionError):
            fail(tracker)
        assert tracker.recording.complete
    with memtrack.open(tmp_path / "r") as recording:
        assert recording.complete
        assert len(recording.processes) == 1


def test_an_output_that_takes_nothing() -> None:
    with Path("/dev/full").open("wb", buffering=0) as full, pytest.raises(OutputError, match="no space left on device"):
        memtrack.record(["true"], output=full)


def test_no_place_for_a_temporary_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with pytest.raises(OutputError, match=r"^cannot make a temporary file .*: no such file or directory \(set TMPDIR"):
        memtrack.record(["true"])


def test_marks_from_any_thread_stand_where_their_time_is() -> None:
    with Tracker() as tracker:
        tracker.mark("first")
        tracker.spawn(["true"]).wait()
        thread = threading.Thread(target=tracker.mark, args=("a label of more than twenty bytes",))
        thread.start()
        thread.join()
    with tracker.recording as recording:
        events = list(recording.events())
    labels = [event.label for event in events if isinstance(event, Mark)]
    assert labels == ["first", "a label of more than"]
    assert isinstance(events[0], Mark)
    assert isinstance(events[-1], Mark)


def test_two_trackers_in_one_process() -> None:
    with Tracker() as first, Tracker() as second:
        first.spawn(["true"]).wait()
        second.spawn(["false"]).wait()
    for tracker, name in ((first, "true"), (second, "false")):
        with tracker.recording as recording:
            assert [process.comm for process in recording.processes] == [name]
            assert recording.lost_events == 0


def test_it_does_not_hinder_signals_of_the_program_that_uses_it() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _frame: heard.append(number))
    try:
        with Tracker() as tracker:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            tracker.spawn(["sleep", "0.2"]).wait()
        assert heard == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, before)
    tracker.recording.close()


def test_every_error_is_of_one_tree() -> None:
    assert all(
        issubclass(getattr(memtrack, name), MemtrackError) for name in memtrack.__all__ if name.endswith("Error")
    )


def test_interrupted_twice_it_ends_by_the_interrupt_and_not_by_a_crash() -> None:
    code = """
import os, signal, threading, memtrack
from memtrack.consumer import Consumer
going_on = threading.Event()
account = Consumer._account_losses
def slow(self, *arguments, **options):
    going_on.wait()
    return account(self, *arguments, **options)
Consumer._account_losses = slow
try:
    with memtrack.Tracker():
        # The second comes while the block is left and its threads are waited for.
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        raise KeyboardInterrupt
except KeyboardInterrupt:
    print("interrupted", flush=True)
    going_on.set()
    threading.Event().wait(0.5)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
