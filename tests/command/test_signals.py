"""Signals to memtrack and from the terminal: each reaches the command once, and the recording stays whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.command.invocation import MEMTRACK, TIMEOUT_S, report, run, start, until
from tests.command.terminal import INTERRUPT, QUIT, STOPPED, SUSPEND, Terminal

pytestmark = pytest.mark.bpf

LISTENER = (sys.executable, str(Path(__file__).with_name("listener.py")))
NOTHING = ["ignored", "blocked", "ready"]

# A signal that came twice comes at once: this is far more than the way takes.
SETTLE_S = 0.2


@pytest.fixture
def heard(tmp_path: Path) -> Path:
    """Where the listener writes."""
    return tmp_path / "heard"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return tmp_path / "recording.zst"


def lines(heard: Path) -> list[str]:
    return [line.rstrip() for line in heard.read_text().splitlines()] if heard.exists() else []


def is_ready(heard: Path) -> bool:
    return "ready" in lines(heard)


def until_heard(heard: Path, name: str, times: int = 1) -> None:
    until(lambda: lines(heard).count(name) >= times)


@pytest.fixture
def recorder(heard: Path, recording: Path) -> Iterator[subprocess.Popen[bytes]]:
    """memtrack with a listener, both there; outside any terminal."""
    process = start(
        "record", "-o", recording, "--", *LISTENER, heard, "3", start_new_session=True, stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: is_ready(heard))
        yield process
    finally:
        # The listener too: it lives on when memtrack is killed.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("name", ["SIGINT", "SIGQUIT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGALRM"])
def test_a_signal_to_memtrack_reaches_the_command_once(
    name: str, recorder: subprocess.Popen[bytes], heard: Path, recording: Path
) -> None:
    recorder.send_signal(signal.Signals[name])
    until_heard(heard, name)
    time.sleep(SETTLE_S)
    recorder.terminate()
    assert recorder.wait() == 3
    assert lines(heard) == [*NOTHING, name, "SIGTERM"]
    assert report(recording)["complete"]


def test_signals_one_after_the_other_all_arrive(recorder: subprocess.Popen[bytes], heard: Path) -> None:
    for number in range(1, 51):
        recorder.send_signal(signal.SIGUSR1)
        until_heard(heard, "SIGUSR1", number)
    recorder.terminate()
    assert recorder.wait() == 3


def test_a_signal_that_ends_the_command_is_the_status(recording: Path) -> None:
    done = run("record", "-o", recording, "--", "sh", "-c", "kill -SEGV $$")
    assert done.code == 128 + signal.SIGSEGV
    assert "by SIGSEGV" in done.err
    assert report(recording)["status"] == {"exit_code": None, "signal": signal.SIGSEGV}


@pytest.mark.parametrize("sender", ["kill -USR1 0", "(trap '' USR1; kill -USR1 0; sleep 0.5)"])
def test_a_command_that_signals_its_whole_group_does_not_get_it_back(
    sender: str, heard: Path, recording: Path, tmp_path: Path
) -> None:
    # Both the command and memtrack are in the group, and so would be a script's other programs.
    script = f"""
    {LISTENER[0]} {LISTENER[1]} {heard} &
    until grep -qs ready {heard}; do sleep 0.02; done
    trap 'echo $((++count)) >{tmp_path}/count' USR1
    {sender}
    sleep {SETTLE_S}
    kill -TERM $!
    wait $!
    """
    process = start(
        "record", "-o", recording, "--", "bash", "-c", script, start_new_session=True, stderr=subprocess.PIPE
    )
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert lines(heard)[lines(heard).index("ready") + 1 :] == ["SIGUSR1", "SIGTERM"]
    assert (tmp_path / "count").read_text() == "1\n"


def test_a_signal_to_the_whole_group_reaches_the_command_at_least_once(
    recorder: subprocess.Popen[bytes], heard: Path
) -> None:
    # Nothing tells memtrack that the command has it too: docs/recorder.md says that it may come twice.
    os.killpg(recorder.pid, signal.SIGUSR1)
    until_heard(heard, "SIGUSR1")
    os.killpg(recorder.pid, signal.SIGTERM)
    assert recorder.wait() == 3


def test_a_signal_before_the_command_is_handed_on(heard: Path, recording: Path) -> None:
    process = start("record", "-o", recording, "--", *LISTENER, heard, start_new_session=True, stderr=subprocess.PIPE)
    with process:
        # The file is there before the handlers are; a moment later they are too, and loading takes far longer.
        until(recording.exists)
        until(lambda: catches(process.pid, signal.SIGTERM))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT_S)
    # Whether the listener was there already decides what became of it.
    assert process.returncode in (0, 128 + signal.SIGTERM)
    assert lines(heard) in ([*NOTHING, "SIGTERM"], [])


def catches(pid: int, number: int) -> bool:
    return bool(int(status_of(pid)["SigCgt"], 16) >> (number - 1) & 1)


def test_what_was_ignored_stays_ignored(heard: Path, recording: Path) -> None:
    # As nohup does, and a shell with what it starts in the background.
    ignoring = ("env", "--ignore-signal=HUP", "--ignore-signal=INT")
    process = start("record", "-o", recording, "--", *LISTENER, heard, within=ignoring, stderr=subprocess.DEVNULL)
    with process:
        until(lambda: is_ready(heard))
        for number in (signal.SIGHUP, signal.SIGINT):
            process.send_signal(number)
        time.sleep(SETTLE_S)
        assert process.poll() is None
        process.terminate()
    assert process.returncode == 0
    assert lines(heard)[0] == "ignored SIGHUP,SIGINT"
    assert lines(heard)[-1] == "SIGTERM"
    assert report(recording)["complete"]


def test_nohup(tmp_path: Path) -> None:
    done = run("record", "-o", "r", "--", "sh", "-c", "kill -HUP $$; echo alive", within=["nohup"], cwd=tmp_path)
    assert (done.code, done.out) == (0, "alive\n")


def test_what_was_blocked_stays_blocked(heard: Path, recording: Path) -> None:
    within = ("env", "--block-signal=USR1")
    process = start("record", "-o", recording, "--", *LISTENER, heard, within=within, stderr=subprocess.DEVNULL)
    with process:
        until(lambda: is_ready(heard))
        process.terminate()
    assert (process.returncode, lines(heard)[1]) == (0, "blocked SIGUSR1")


def test_the_status_survives_a_parent_that_ignores_its_children(recording: Path) -> None:
    done = run("record", "-o", recording, "--", "sh", "-c", "exit 5", within=["env", "--ignore-signal=CHLD"])
    assert done.code == 5


def test_only_the_main_thread_takes_signals(recorder: subprocess.Popen[bytes]) -> None:
    # Any other could take SIGCHLD in the moment before the main thread waits for it, which would then wait for ever.
    tasks = {int(task.name): fields_of(task) for task in Path(f"/proc/{recorder.pid}/task").iterdir()}
    main = tasks.pop(recorder.pid)
    assert tasks
    every = (1 << 64) - 1 & ~sum(1 << (number - 1) for number in (signal.SIGKILL, signal.SIGSTOP, 32, 33))
    for status in tasks.values():
        assert int(status["SigBlk"], 16) & every == every
    assert int(main["SigBlk"], 16) & every != every


@pytest.mark.parametrize("_attempt", range(5))
def test_the_end_of_a_short_command_is_never_missed(_attempt: int, recording: Path) -> None:
    assert run("record", "-o", recording, "--", "true").code == 0


@pytest.mark.parametrize("shell", [True, False], ids=["under a shell", "leading the session"])
@pytest.mark.parametrize(("key", "name"), [(INTERRUPT, "SIGINT"), (QUIT, "SIGQUIT"), (b"", "SIGWINCH")])
def test_what_the_terminal_sends_reaches_the_command_once(
    key: bytes, name: str, shell: bool, heard: Path, recording: Path
) -> None:
    command: list[str | Path] = [*MEMTRACK, "record", "-o", recording, "--", *LISTENER, heard, "3"]
    with Terminal(command, shell=shell) as terminal:
        until(lambda: is_ready(heard))
        memtrack = memtrack_of(heard)
        # While it is stopped the command takes its own, so that one which came twice cannot be taken for one.
        os.kill(memtrack, signal.SIGSTOP)
        until(lambda: state_of(memtrack) == "T")
        if key:
            terminal.press(key)
        else:
            terminal.resize(10, 20)
        until_heard(heard, name)
        if shell:
            assert terminal.next_change() == STOPPED
            terminal.resume()
        else:
            os.kill(memtrack, signal.SIGCONT)
        time.sleep(SETTLE_S)
        os.kill(memtrack, signal.SIGTERM)
        text = terminal.text()
        if shell:
            assert terminal.next_change() == "3"
    assert [line for line in lines(heard) if line != "SIGCONT"] == [*NOTHING, name, "SIGTERM"]
    assert "ended           with exit status 3" in text
    assert report(recording)["complete"]


def test_a_key_that_ends_the_command_leaves_a_whole_recording(recording: Path, tmp_path: Path) -> None:
    command: list[str | Path] = [
        *MEMTRACK,
        "record",
        "-o",
        recording,
        "--",
        "sh",
        "-c",
        f"touch {tmp_path}/up; exec sleep 60",
    ]
    with Terminal(command) as terminal:
        until((tmp_path / "up").exists)
        terminal.press(INTERRUPT)
        assert terminal.next_change() == str(128 + signal.SIGINT)
        assert "by SIGINT" in terminal.text()
    data = report(recording)
    assert (data["complete"], data["status"]) == (True, {"exit_code": None, "signal": signal.SIGINT})
    assert data["peak"]["rss_bytes"] > 0


def test_a_key_while_memtrack_prepares_reaches_the_command_or_ends_it(heard: Path, recording: Path) -> None:
    with Terminal([*MEMTRACK, "record", "-o", recording, "--", *LISTENER, heard]) as terminal:
        until(recording.exists)
        terminal.press(INTERRUPT)
        # It came before there was a command, or before that could listen, or it was heard.
        ended = until(
            lambda: "SIGINT" in lines(heard) or not recording.exists() or "by SIGINT" in recorded_text(recording)
        )
        assert ended
        time.sleep(SETTLE_S)
        if is_ready(heard):
            assert lines(heard) == [*NOTHING, "SIGINT"]
            os.kill(memtrack_of(heard), signal.SIGTERM)
        terminal.text()


def recorded_text(recording: Path) -> str:
    done = run("report", recording)
    return done.out


def test_suspended_and_resumed(heard: Path, recording: Path) -> None:
    with Terminal([*MEMTRACK, "record", "-o", recording, "--", *LISTENER, heard]) as terminal:
        until(lambda: is_ready(heard))
        memtrack, listener = memtrack_of(heard), listener_of(heard)
        for count in (1, 2):
            terminal.press(SUSPEND)
            assert terminal.next_change() == STOPPED
            until(lambda: state_of(listener) == state_of(memtrack) == "T")
            terminal.resume()
            until_heard(heard, "SIGCONT", count)
        os.kill(memtrack, signal.SIGTERM)
        assert terminal.next_change() == "0"
        terminal.text()
    assert lines(heard) == [*NOTHING, "SIGCONT", "SIGCONT", "SIGTERM"]
    assert report(recording)["complete"]


@pytest.mark.parametrize("shell", [True, False], ids=["under a shell", "leading the session"])
def test_a_hang_up_reaches_the_command(shell: bool, heard: Path, recording: Path) -> None:
    with Terminal([*MEMTRACK, "record", "-o", recording, "--", *LISTENER, heard], shell=shell) as terminal:
        until(lambda: is_ready(heard))
        memtrack = memtrack_of(heard)
        terminal.hang_up()
        # The kernel tells the session's leader; a shell ends, and then the kernel tells the foreground's group.
        until_heard(heard, "SIGHUP")
        time.sleep(SETTLE_S)
        os.kill(memtrack, signal.SIGTERM)
        until(lambda: lines(heard)[-1] == "SIGTERM")
        until(lambda: not is_running(memtrack))
    # The kernel sends SIGCONT after SIGHUP, so that what is stopped wakes up.
    assert [line for line in lines(heard) if line != "SIGCONT"] == [*NOTHING, "SIGHUP", "SIGTERM"]
    assert report(recording)["complete"]


def listener_of(heard: Path) -> int:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if os.fsencode(heard) in command and b"memtrack" not in command and b"terminal.py" not in command[1]:
            return int(process.name)
    raise AssertionError("the listener has gone")


def memtrack_of(heard: Path) -> int:
    return int(status_of(listener_of(heard))["PPid"])


def status_of(pid: int) -> dict[str, str]:
    return fields_of(Path(f"/proc/{pid}"))


def fields_of(process: Path) -> dict[str, str]:
    return dict(line.split(":\t") for line in (process / "status").read_text().splitlines() if ":\t" in line)


def state_of(pid: int) -> str:
    return status_of(pid)["State"][0]


def is_running(pid: int) -> bool:
    try:
        return state_of(pid) != "Z"
    except FileNotFoundError:
        return False


def test_control_c_while_modules_are_imported() -> None:
    """The system ends it, as with any program; Python would show where it was."""
    command = [sys.executable, "-X", "importtime", "-m", "memtrack", "doctor"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        for line in process.stderr:
            if line.endswith("memtrack.errors\n"):
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
    assert "Traceback" not in rest
    assert process.returncode == -signal.SIGINT
