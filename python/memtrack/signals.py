"""Passes signals on to the command while waiting for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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

# siginfo's si_code of what the terminal itself sends to its whole foreground group.
_SI_KERNEL = 0x80


class Forwarder:
    """Takes signals from the time it is entered, and hands them on as soon as there is a command."""

    def __init__(self) -> None:
        self._early: list[int] = []
        self._child: Process | None = None

    def wait(self, child: Process) -> int:
        """Waits for the command, passing on what comes meanwhile; returns Popen's return code.

        What the terminal sends reaches the command without us: that is not passed on, or it would come twice.
        """
        watched = {signal.SIGCHLD, *FORWARDED}
        signal.pthread_sigmask(signal.SIG_BLOCK, watched)
        try:
            self._child = child
            for number in self._early:
                self._send(number)
            while (code := child.poll()) is None:
                info = signal.sigwaitinfo(watched)
                if info.si_signo != signal.SIGCHLD and info.si_code != _SI_KERNEL:
                    self._send(info.si_signo)
            return code
        finally:
            # Back to handlers, which forward whatever still comes, for instance while a tree is waited for.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)

    def _send(self, number: int) -> None:
        assert self._child is not None
        with suppress(ProcessLookupError, PermissionError):
            self._child.send_signal(number)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self._early.append(number)

    @property
    def interrupted(self) -> bool:
        """Whether a signal came that nobody has been given yet."""
        return bool(self._early)

    @contextmanager
    def installed(self) -> Iterator[Forwarder]:
        """Handlers are in place; they are not inherited over exec, so the command starts with what we found."""
        before = {}
        for number in FORWARDED:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup's choice is the command's as well
                before[number] = signal.signal(number, self._handle)
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def end_by(number: int) -> None:
    """Ends this process the way a signal would have."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
