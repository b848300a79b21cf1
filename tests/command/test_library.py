"""memtrack as a harness uses it, over and over in one process: it keeps nothing, and changes nothing for anybody."""

from __future__ import annotations

import gc
import io
import os
import resource
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import memtrack
from memtrack import loader, recorder, report
from tests.command.invocation import until

pytestmark = pytest.mark.bpf

Limit = tuple[int, int]


@pytest.fixture
def collector_off() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("collector_off")
def test_a_recording_that_nobody_has_any_more_is_gone_at_once() -> None:
    # Not only when the garbage collector comes by: it has a file, and its tracker has buffers.
    descriptors = set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - as text
    recordings = []
    for events in (True, False):
        recording = memtrack.record(["true"], events=events)
        recordings.append(weakref.ref(recording))
        del recording
    assert [recording() for recording in recordings] == [None, None]
    assert set(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208


# The number of the system call. An interrupt that comes earlier may be Popen's, which leaves the process alone.
WAIT4 = {"x86_64": "61", "aarch64": "260"}

# What a harness that is interrupted while a benchmark runs looks like from outside.
HARNESS = """
import sys, memtrack
try:
    memtrack.record(["sh", "-c", "echo $$; exec sleep 60"], output=open(sys.argv[1], "w+b"))
except KeyboardInterrupt:
    sys.exit(9)
"""


def test_an_interrupted_wait_kills_the_command(tmp_path: Path) -> None:
    harness = subprocess.Popen([sys.executable, "-c", HARNESS, tmp_path / "r"], stdout=subprocess.PIPE)
    with harness:
        assert harness.stdout
        pid = int(harness.stdout.readline())
        doing = Path(f"/proc/{harness.pid}/syscall")
        until(lambda: doing.read_text().split()[0] == WAIT4[os.uname().machine])
        harness.send_signal(signal.SIGINT)
    assert harness.returncode == 9
    assert not Path(f"/proc/{pid}").exists()
    with memtrack.open(tmp_path / "r") as recording:
        assert recording.complete
        assert recording.status.signal == signal.SIGKILL


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_a_pipe_that_nobody_could_use_is_refused(stream: str) -> None:
    options: dict[str, Any] = {stream: subprocess.PIPE}
    with pytest.raises(memtrack.UsageError, match=rf"nobody .* as {stream} \(.*Tracker.spawn\)"):
        memtrack.record(["cat"], **options)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Limit, Limit]]:
    """A limit on locked memory, and what libbpf would raise it to; or as far as this process may."""
    found = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    raised = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, raised)
    except ValueError:
        raised = (found[1], found[1])
    before = (0, found[1])
    resource.setrlimit(resource.RLIMIT_MEMLOCK, before)
    monkeypatch.setattr(recorder, "_memlock_raised", None)
    yield before, raised
    resource.setrlimit(resource.RLIMIT_MEMLOCK, found)


def test_a_shell_has_to_be_named() -> None:
    with pytest.raises(memtrack.UsageError, match=r"not given to a shell \(name it: "):
        memtrack.record(["exit 3"], shell=True)
    assert memtrack.record(["sh", "-c", "exit 3"], shell=False).status.exit_code == 3


@pytest.mark.parametrize("output", ["recording.zst", Path("recording.zst"), io.StringIO()])
def test_an_output_that_is_no_binary_file_is_told_at_once(output: Any) -> None:
    with pytest.raises(memtrack.UsageError, match=r"not a binary file \(open\(path, \"w\+b\"\) gives one\)"):
        memtrack.record(["true"], output=output)


def test_the_limit_that_libbpf_raises_is_nobody_elses(
    limits: tuple[Limit, Limit], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # As it does before Linux 5.11: once in a process's life, and every load needs it.
    before, raised = limits
    load = loader.load
    loaded_with: list[Limit] = []

    def load_as_then(*arguments: Any, **options: Any) -> loader.Probes:
        if not loaded_with:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, raised)
        loaded_with.append(resource.getrlimit(resource.RLIMIT_MEMLOCK))
        return load(*arguments, **options)

    monkeypatch.setattr(loader, "load", load_as_then)
    command = ["sh", "-c", "ulimit -S -l; ulimit -H -l"]
    expected = subprocess.run(command, capture_output=True, check=True).stdout
    for _ in range(2):
        with (tmp_path / "limits").open("w+b") as file:
            memtrack.record(command, events=False, stdout=file)
        assert (tmp_path / "limits").read_bytes() == expected
        assert resource.getrlimit(resource.RLIMIT_MEMLOCK) == before
    assert loaded_with == [raised, raised]


def test_the_limit_is_as_it_was_when_loading_fails(
    limits: tuple[Limit, Limit], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, raised = limits

    def fail(*_: Any, **__: Any) -> None:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, raised)
        raise memtrack.LoadError("no")

    monkeypatch.setattr(loader, "load", fail)
    with pytest.raises(memtrack.LoadError), memtrack.Tracker():
        pass
    assert resource.getrlimit(resource.RLIMIT_MEMLOCK) == before


def test_a_tracker_that_was_told_no_command_says_what_it_began_with() -> None:
    with memtrack.Tracker() as tracker:
        tracker.spawn(["sh", "-c", "exit 3"]).wait()
    assert report.to_text(tracker.recording).splitlines()[0] == "command         not named (it began with sh)"
