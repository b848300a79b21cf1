"""Writes down every signal that it gets, each as often as it comes, until SIGTERM comes.

python listener.py FILE [STATUS]     FILE begins with what was ignored and blocked at the start; ends with STATUS
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

HEARD = {
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
    signal.SIGALRM,
    signal.SIGCONT,
}


def names(mask: str) -> str:
    """Signals of a mask in /proc/self/status."""
    return ",".join(number.name for number in signal.valid_signals() if int(mask, 16) >> (number - 1) & 1)


def main(path: str, status: str = "0") -> None:
    state = dict(line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    with Path(path).open("w", buffering=1) as file:
        # The interpreter itself ignores SIGPIPE and SIGXFSZ.
        print("ignored", names(f"{int(state['SigIgn'], 16) & ~(1 << 12 | 1 << 24):x}"), file=file)
        print("blocked", names(state["SigBlk"]), file=file)
        print("ready", file=file)
        while (number := signal.Signals(signal.sigwait(HEARD))) != signal.SIGTERM:
            print(number.name, file=file)
        print(number.name, file=file)
    sys.exit(int(status))


if __name__ == "__main__":
    main(*sys.argv[1:])
