"""What recorders say of memory, held against what others say of it: the target itself, and the kernel."""

from __future__ import annotations

import mmap
import os

from benchmarks.contenders import Output
from benchmarks.rounds import Measurement
from memtrack import features, hooks

# percpu_counter_batch, or twice the number of CPUs: what a CPU keeps of a counter to itself stays below that, or goes
# into the sum that others read (lib/percpu_counter.c; address spaces' counters are of this kind since Linux 6.2).
_BATCH_PAGES = 32
_COUNTERS = 3  # file, anonymous, shmem


def counters_are_exact() -> bool:
    """Whether memtrack's figures are the kernel's to the byte: since Linux 6.2."""
    return hooks.choose(features.probe(), rmap=False).counters_are_percpu


def largest_bound_bytes() -> int:
    """How far ru_maxrss may be off: it is read without what each CPU keeps to itself."""
    cpus = os.cpu_count() or 1
    return _COUNTERS * cpus * (max(_BATCH_PAGES, 2 * cpus) - 1) * mmap.PAGESIZE


def peak_error(run: Measurement, output: Output) -> float | None:
    """Of the tree's peak, as a part of the target's own account of it."""
    if not run.truth_bytes or output.peak_bytes is None:
        return None
    return (output.peak_bytes - run.truth_bytes) / run.truth_bytes


def largest_off_bytes(run: Measurement, output: Output) -> int | None:
    """Of the largest process's peak, from ru_maxrss."""
    return None if output.largest_bytes is None else output.largest_bytes - run.largest_bytes


def figures_off_bytes(run: Measurement, output: Output) -> dict[str, int]:
    """Of the peaks and last figures of processes that read their own, by kind of memory; empty if nobody has both."""
    return {
        f"{what} {kind} of {held['pid']}": output.processes[held["pid"]][what][kind] - size
        for held in run.held
        if held["pid"] in output.processes
        for what in ("peak", "last")
        for kind, size in held.get(what, {}).items()
    }
