"""What the forwarder takes for the terminal's own, where nobody says who sent it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from memtrack import signals
from memtrack.signals import FORWARDED, Forwarder


@pytest.fixture
def forwarder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Forwarder]:
    monkeypatch.setattr(signals, "_in_foreground", lambda: True)
    monkeypatch.setattr(os, "getsid", lambda _pid: 1)
    with Forwarder().installed() as installed:
        yield installed


def raise_all() -> None:
    for number in FORWARDED:
        signal.raise_signal(number)


def starting(forwarder: Forwarder, *command: str) -> subprocess.Popen[bytes]:
    """The signals come when the command has begun, and nobody waits for it yet."""

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        raise_all()
        return process

    return forwarder.start(start)


# Ends by the first signal that is neither ignored nor the terminal's.
SLEEPER = ("env", "--default-signal", "sleep", "60")


def starting_watched(
    forwarder: Forwarder, monkeypatch: pytest.MonkeyPatch
) -> tuple[subprocess.Popen[bytes], list[int]]:
    """Also what it is sent, by which it ends."""
    sent: list[int] = []
    process = starting(forwarder, *SLEEPER)

    def send(number: int) -> None:
        sent.append(number)
        os.kill(process.pid, signal.SIGKILL)

    monkeypatch.setattr(process, "send_signal", send)
    return process, sent


def test_before_the_command_everything_is_kept_for_it(forwarder: Forwarder) -> None:
    signal.raise_signal(signal.SIGINT)
    process = forwarder.start(lambda: subprocess.Popen(SLEEPER))
    assert forwarder.wait(process) == -signal.SIGINT
    assert not forwarder.interrupted


def test_while_the_command_begins_the_terminals_are_its_own(
    forwarder: Forwarder, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, sent = starting_watched(forwarder, monkeypatch)
    assert forwarder.wait(process) == -signal.SIGKILL
    process.communicate()
    assert not set(sent) & {signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGWINCH}
    assert {signal.SIGTERM, signal.SIGUSR1} <= set(sent)


def test_outside_a_terminal_they_are_passed_on(forwarder: Forwarder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_in_foreground", lambda: False)
    process, sent = starting_watched(forwarder, monkeypatch)
    forwarder.wait(process)
    process.communicate()
    assert sent == list(FORWARDED)


def test_a_hang_up_is_the_leaders_to_pass_on(forwarder: Forwarder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getsid", lambda _pid: os.getpid())
    process, sent = starting_watched(forwarder, monkeypatch)
    forwarder.wait(process)
    process.communicate()
    assert signal.SIGHUP in sent
    assert signal.SIGINT not in sent


def test_after_the_commands_end_any_is_for_us(forwarder: Forwarder) -> None:
    forwarder.wait(forwarder.start(lambda: subprocess.Popen(["true"])))
    assert not forwarder.interrupted
    signal.raise_signal(signal.SIGINT)
    assert forwarder.interrupted


def test_a_command_that_has_gone_gets_none(forwarder: Forwarder) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    raise_all()
    assert forwarder.wait(process) == 0


def test_handlers_and_mask_are_put_back() -> None:
    watched = (*FORWARDED, signal.SIGCHLD)
    before = [signal.getsignal(number) for number in watched], signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with Forwarder().installed() as forwarder:
        forwarder.wait(subprocess.Popen(["true"]))
    assert ([signal.getsignal(number) for number in watched], signal.pthread_sigmask(signal.SIG_BLOCK, [])) == before


def test_without_a_terminal_nobody_is_in_its_foreground() -> None:
    code = "from memtrack import signals; print(signals._in_foreground())"
    done = subprocess.run([sys.executable, "-c", code], start_new_session=True, capture_output=True, check=True)
    assert done.stdout == b"False\n"
