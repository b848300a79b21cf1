"""A terminal with a shell of its own, on which keys can be pressed.

Run as a program it is what has the terminal: python terminal.py CONTROL_FD|leader CMD [ARG...]
"""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from types import TracebackType

INTERRUPT, QUIT, SUSPEND = b"\x03", b"\x1c", b"\x1a"
STOPPED = "stopped"

# As long as anything here may take on a machine that is busy.
TIMEOUT_S = 60


class Terminal:
    """Runs a command in a terminal's foreground: as a shell does, in a process group of its own, or as the leader of
    the terminal's session, as `ssh -t HOST CMD` does."""

    def __init__(self, command: Sequence[str | os.PathLike[str]], *, shell: bool = True) -> None:
        self._screen, inside = pty.openpty()
        self._control, theirs = socket.socketpair()
        self._control.settimeout(TIMEOUT_S)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()) if shell else "leader", *command],
                stdin=inside,
                stdout=inside,
                stderr=inside,
                start_new_session=True,
                pass_fds=[theirs.fileno()] if shell else [],
            )
        os.close(inside)

    def press(self, key: bytes) -> None:
        os.write(self._screen, key)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._screen, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def hang_up(self) -> None:
        os.close(self._screen)
        self._screen = -1

    def next_change(self) -> str:
        """What the shell is told next of its command: STOPPED, or the exit status, negative for a signal."""
        return self._control.recv(100).decode()

    def resume(self) -> None:
        """What `fg` does."""
        self._control.send(b"fg")

    def text(self) -> str:
        """Everything on the screen; waits until nobody can write there any more."""
        content = b""
        try:
            while chunk := os.read(self._screen, 4096):
                content += chunk
        except OSError:  # EIO: the other side is closed
            pass
        return content.decode(errors="replace")

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.process.kill()
        if self._screen >= 0:
            self.hang_up()
        self.process.wait(TIMEOUT_S)
        self._control.close()


def run_as_shell(control: socket.socket, command: tuple[str, ...]) -> None:
    # A shell may give the terminal away, and take it back, while it is in the background itself.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    pid = os.fork()
    if not pid:
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpid())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.execvp(command[0], command)
    while True:
        _, status = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            control.send(str(os.waitstatus_to_exitcode(status)).encode())
            return
        control.send(STOPPED.encode())
        control.recv(100)
        os.tcsetpgrp(0, pid)
        os.killpg(pid, signal.SIGCONT)


def main(mode: str, *command: str) -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if mode == "leader":
        os.execvp(command[0], command)
    control = socket.socket(fileno=int(mode))
    control.set_inheritable(False)
    run_as_shell(control, command)


if __name__ == "__main__":
    main(*sys.argv[1:])
