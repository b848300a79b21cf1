"""What the figures were measured on, and leaving it as it was."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_TRACEFS = Path("/sys/kernel/tracing")


def facts() -> dict[str, Any]:
    models = {
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    }
    return {
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "model": ", ".join(sorted(models)) or platform.machine(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE"),
        "load_average": os.getloadavg()[0],
    }


def text(of: dict[str, Any]) -> str:
    return (
        f"Linux {of['kernel']}, {of['cpus']} CPUs ({of['model']}), {of['memory_bytes'] / (1 << 30):.0f} GiB; "
        f"load average at the start {of['load_average']:.1f}\n"
    )


@contextlib.contextmanager
def as_it_was() -> Iterator[None]:
    """With tracefs, which bpftrace needs, and which perf would mount and leave there."""
    mounted = _TRACEFS.is_mount()
    if not mounted:
        subprocess.run(["mount", "-t", "tracefs", "tracefs", str(_TRACEFS)], check=False)
    try:
        yield
    finally:
        if not mounted and _TRACEFS.is_mount():
            subprocess.run(["umount", str(_TRACEFS)], check=False)


@contextlib.contextmanager
def preferred() -> Iterator[None]:
    """Recorders and targets go before what else the machine does, all of them alike."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, -10)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)
