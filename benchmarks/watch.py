"""Running a process to its end and telling what it took."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import programs

# How often the peak memory is looked at. The kernel keeps the peak, so only what comes last can be missed. What wait4
# tells will not do: it is not less than what the process held before it ran its program, a copy of this one's.
_LOOK_MS = 20


class Took(NamedTuple):
    elapsed_ns: float
    cpu_ns: int
    """Of the process and the descendants that it has waited for."""
    peak_bytes: int
    """The most memory that the process itself held, apart from what it mapped of BPF rings."""
    status: int


def run(command: Sequence[str], **options: Any) -> Took:
    """In the checkout, so that contenders of ours are found; `options` are Popen's."""
    started_ns = time.monotonic_ns()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=programs.ROOT, env=_environment(), **options)
    peak_bytes = _watch(process.pid)
    _, status, used = os.wait4(process.pid, 0)
    elapsed_ns = time.monotonic_ns() - started_ns
    process.returncode = os.waitstatus_to_exitcode(status)
    return Took(elapsed_ns, int((used.ru_utime + used.ru_stime) * 1e9), peak_bytes, process.returncode)


def _environment() -> dict[str, str]:
    """Python programs find their bytecode compiled, as they do once they are installed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**environment, "PYTHONPYCACHEPREFIX": str(programs.BUILD / "bytecode")}


def _watch(pid: int) -> int:
    """Waits for the end of a process without reaping it; returns the most memory it held."""
    peak_bytes = rings_bytes = 0
    pidfd = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        while not poll.poll(_LOOK_MS):
            peak_bytes = max(peak_bytes, _peak_bytes(pid))
            rings_bytes = max(rings_bytes, ring_bytes(pid))
    finally:
        os.close(pidfd)
    return peak_bytes - rings_bytes


def _peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0  # it is ending


def ring_bytes(pid: int) -> int:
    """The kernel fills these mappings when they are made, so that all of them is in the peak."""
    total = 0
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if line.endswith("anon_inode:bpf-map"):
            start, end = line.split(maxsplit=1)[0].split("-")
            total += int(end, 16) - int(start, 16)
    return total
