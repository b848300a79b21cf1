"""A target: ``python -m benchmarks.touch CPU``. Touches pages of several kinds and gives them back, again and again.

Prints JSON: nanoseconds of CPU time for a page, huge where pages are huge, by kind and by what is done with them, one
figure a repetition. It is Python so that it runs where there is no compiler; the loops over the pages are C, in mmap.

Meanwhile it goes before everything else on its CPU, and sleeps after each repetition. A recorder that has been put on
the same CPU runs then and only then. That matters in a guest without hardware virtualisation, whose CPUs take turns on
one of the host's: what runs on one CPU is time on the clock of the other.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

TOUCH, GIVE_BACK = "touch", "give back"
REPETITIONS = 16
# Four records for each at most: the ring of a small machine takes them all before the recorder has its turn.
PAGES = 2048
HUGE_PAGES = 8
_SLEEP_S = 0.02
_PAGE_BYTES = mmap.PAGESIZE
_HUGE = Path("/sys/kernel/mm/transparent_hugepage")

Figures = dict[str, list[float]]


def main() -> int:
    cpu = int(sys.argv[1])
    os.sched_setaffinity(0, {cpu})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    print(json.dumps({"anonymous": _anonymous(), "file": _file(), "huge": _huge()}))
    return 0


def _anonymous() -> Figures:
    area = mmap.mmap(-1, PAGES * _PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_NOHUGEPAGE)
    ones = b"\1" * PAGES

    def touch() -> None:
        area[::_PAGE_BYTES] = ones

    return _measured(touch, lambda: area.madvise(mmap.MADV_DONTNEED), PAGES)


def _file() -> Figures:
    """All of a file that is in the page cache. A fault maps what is around it too, as it does for every program."""
    with tempfile.TemporaryFile(dir=Path(__file__).parents[1] / "build") as file:
        file.write(bytes(PAGES * _PAGE_BYTES))
        file.flush()
        os.fsync(file.fileno())
        area = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
        return _measured(lambda: area[::_PAGE_BYTES], lambda: area.madvise(mmap.MADV_DONTNEED), PAGES)


def _huge() -> Figures | None:
    """None where there are no huge pages to be had."""
    if not _HUGE.exists() or "[never]" in (_HUGE / "enabled").read_text():
        return None
    size = int((_HUGE / "hpage_pmd_size").read_text())
    area = mmap.mmap(-1, (HUGE_PAGES + 1) * size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(area)) % size
    length = HUGE_PAGES * size
    area.madvise(mmap.MADV_HUGEPAGE)
    before = _anon_huge_bytes()
    ones = b"\1" * HUGE_PAGES

    def touch() -> None:
        area[start : start + length : size] = ones

    touch()
    if _anon_huge_bytes() - before < length:
        return None
    area.madvise(mmap.MADV_DONTNEED)
    return _measured(touch, lambda: area.madvise(mmap.MADV_DONTNEED), HUGE_PAGES)


def _anon_huge_bytes() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("AnonHugePages:"))


def _measured(touch: Callable[[], object], give_back: Callable[[], object], pages: int) -> Figures:
    figures: Figures = {TOUCH: [], GIVE_BACK: []}
    for _ in range(REPETITIONS):
        start_ns = time.thread_time_ns()
        touch()
        touched_ns = time.thread_time_ns()
        give_back()
        end_ns = time.thread_time_ns()
        figures[TOUCH].append((touched_ns - start_ns) / pages)
        figures[GIVE_BACK].append((end_ns - touched_ns) / pages)
        time.sleep(_SLEEP_S)
    return figures


if __name__ == "__main__":
    sys.exit(main())
