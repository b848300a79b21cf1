"""Passes signals on to the command while waiting for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from memtrack.spawn import Process

# What someone may send to a program that stands for another. SIGTSTP and SIGCONT act on both by themselves, as both are
# in one process group; the others have no meaning for a waiting parent, or no handler.
FORWARDED = (
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
    signal.SIGALRM,
)

# siginfo's si_code of what the terminal itself sends, and which signals those are.
_SI_KERNEL = 0x80
_OF_TERMINALS = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGWINCH})


class Forwarder:
    """Takes signals from the time it is installed, and hands them on as soon as there is a command.

    What the terminal sends reaches a command that runs without us: that is not passed on, or it would come twice.
    """

    def __init__(self) -> None:
        self._untold: list[int] = []
        self._starting = False

    def start(self, start: Callable[[], Process]) -> Process:
        """What `start` returns. From the time it is called on the command may get the terminal's signals itself."""
        self._starting = True
        return start()

    def wait(self, child: Process) -> int:
        """Waits for the command, passing on what comes meanwhile; returns Popen's return code."""
        watched = {signal.SIGCHLD, *FORWARDED}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
        try:
            self._starting = False
            early, self._untold = self._untold, []
            for number in early:
                _send(child, number)
            while (code := child.poll()) is None:
                info = signal.sigwaitinfo(watched)
                if info.si_signo != signal.SIGCHLD and not _has_come_already(child.pid, info):
                    _send(child, info.si_signo)
            return code
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        # Python does not tell a handler who sent it. In the short time between the command's start and wait, what may
        # come from the terminal is taken to come from it: a key can be pressed again, but not taken back.
        by_terminal = number in _OF_TERMINALS and _sent_to_group(number) and _in_foreground()
        if not (self._starting and by_terminal):
            self._untold.append(number)

    @property
    def interrupted(self) -> bool:
        """Whether a signal came that nobody has been given: after the command's end, somebody wants us to end."""
        return bool(self._untold)

    @contextmanager
    def installed(self) -> Iterator[Forwarder]:
        """Handlers are in place; they are not inherited over exec, so the command starts with what we found."""
        before = {}
        for number in FORWARDED:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup's choice is the command's as well
                before[number] = signal.signal(number, self._handle)
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
            # The kernel would throw away the command's status, and not tell us of its end.
            before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _has_come_already(pid: int, info: signal.struct_siginfo) -> bool:
    """Whether the command has had this signal too: from the terminal, or because it signals its own process group."""
    if info.si_code == _SI_KERNEL:
        return _sent_to_group(info.si_signo)
    return _descends(info.si_pid, pid)


def _descends(pid: int, ancestor: int) -> bool:
    """Whether a process is another or of its descendants; not if it is gone."""
    with suppress(OSError, ValueError):
        while pid > 1:
            if pid == ancestor:
                return True
            # After the name, which is in parentheses and may have any character: state, parent.
            pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    return False


def _send(child: Process, number: int) -> None:
    # Gone already; or of another user, as a set-user-id program is.
    with suppress(ProcessLookupError, PermissionError):
        child.send_signal(number)


def _sent_to_group(number: int) -> bool:
    """Whether the terminal sends this signal to the foreground group, the command included: a hang-up goes to the
    session's leader, and to the group when that has ended."""
    return number != signal.SIGHUP or os.getsid(0) != os.getpid()


def _in_foreground() -> bool:
    """Whether a terminal's keys send signals to this process's group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
