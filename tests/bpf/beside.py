"""Several recorders of one command: what they say of it may be compared to the byte."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from memtrack import Tracker
from memtrack.loader import Probes
from tests.bpf import environment


@contextmanager
def spawned(probes: Sequence[Probes], command: Sequence[object], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """The command, a root of each one's tree from its first instruction on; it has ended after the block."""
    try:
        for each in probes:
            each.set_spawner(threading.get_native_id())
        process = subprocess.Popen([str(argument) for argument in command], **options)
    finally:
        for each in probes:
            each.set_spawner(0)
    with process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def run(trackers: Sequence[Tracker], command: Sequence[object]) -> None:
    """The same under trackers that are entered, to its end. Workloads want their memory to hold still at times."""
    probes = [tracker._entered() for tracker in trackers]
    with environment.no_khugepaged(), spawned(probes, command, stdout=subprocess.DEVNULL) as process:
        assert process.wait(300) == 0
