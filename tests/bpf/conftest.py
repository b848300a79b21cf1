"""No test may leave anything: a descriptor or BPF object, a process, a setting of the machine."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memtrack import features, hooks
from memtrack.ringbuf import RingBuffer
from tests.bpf import environment

SETTINGS = (
    "/proc/swaps",
    "/proc/sys/kernel/pid_max",
    "/proc/sys/kernel/threads-max",
    "/proc/sys/vm/min_free_kbytes",
    "/sys/kernel/mm/ksm/pages_to_scan",
    "/sys/kernel/mm/ksm/run",
    "/sys/kernel/mm/ksm/sleep_millisecs",
    "/sys/kernel/mm/ksm/use_zero_pages",
    "/sys/kernel/mm/transparent_hugepage/defrag",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs",
    "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
)


def settings() -> dict[str, str]:
    with environment.alone():  # not those that another run has made
        values = {path: Path(path).read_text() for path in SETTINGS if Path(path).exists()}
        pools = Path("/sys/kernel/mm/hugepages").glob("*/nr_hugepages")
        return values | {str(pool): pool.read_text() for pool in pools}


def descriptors() -> dict[str, str]:
    """By number; the one of the listing itself is gone when it is looked at."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        try:
            found[link.name] = str(link.readlink())
        except FileNotFoundError:
            continue
    return found


def has_children() -> bool:
    """Living or not yet reaped; looks without reaping."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = descriptors()
    yield
    left = {number: target for number, target in descriptors().items() if number not in before}
    assert not left, f"descriptors are left open: {left}"
    assert not has_children(), "processes are left"


@pytest.fixture(autouse=True, scope="session")
def settings_are_put_back() -> Iterator[None]:
    before = settings()
    yield
    assert settings() == before


@pytest.fixture(scope="session")
def counters_are_percpu() -> bool:
    """Since Linux 6.2. Before, they lag, and there are no totals in the kernel."""
    return hooks.choose(features.probe(), rmap=False).counters_are_percpu


@pytest.fixture(scope="session")
def totals(counters_are_percpu: bool) -> None:
    if not counters_are_percpu:
        pytest.skip("before Linux 6.2 the kernel side keeps no totals")


@pytest.fixture(scope="session")
def loses_nothing() -> None:
    """For tests that compare with a recorder that loses nothing."""
    if "PREEMPT_RT" in platform.version():
        pytest.skip("with PREEMPT_RT the kernel skips programs, so that any recorder may lose events")


@pytest.fixture
def late_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    """So late each time that a ring of a few pages is full before."""
    drain = RingBuffer.drain

    def late(*arguments: Any) -> int:
        time.sleep(0.1)
        return drain(*arguments)

    monkeypatch.setattr(RingBuffer, "drain", late)
