"""What a recording lacks and why, from what the BPF programs counted: for its trailer, and for people."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from memtrack.loader import MORE_PROCESSES, Tally

# What a CPU keeps of a percpu_counter is folded into the total at max(32, 2 * CPUs): compute_batch_value() in the
# kernel's lib/percpu_counter.c.
_BATCH_PAGES: Final = 32

# An entry of a page table.
_ENTRY_BYTES: Final = 8

_LARGER_RING: Final = "record with a larger ring or less load"


def counts(tally: Tally, skipped: int) -> dict[str, int]:
    """Each way to lose events, apart; `lost_events` is their sum. Those that there were none of are 0.

    `ring`: changes that the ring had no room for. `headroom`: forks, execs, exits, adoptions and figures, for which a
    part of the ring is kept. `skipped`: the kernel skipped a program that was running on that CPU. `processes`,
    `spaces`, `sharers`: what a table had no room for, see bpf/state.h.
    """
    return {
        "ring": tally.lost_ring,
        "headroom": tally.lost_lifecycle,
        "skipped": skipped,
        "processes": tally.processes_full,
        "spaces": tally.spaces_full,
        "sharers": tally.sharers_full,
    }


def remedy(losses: Mapping[str, int]) -> str | None:
    """What would have lost less."""
    if losses.get("processes") or losses.get("spaces"):
        return MORE_PROCESSES
    if losses.get("ring") or losses.get("headroom"):
        return _LARGER_RING
    return None


def shortcomings(tally: Tally, max_processes: int, *, adopted_in_part: bool = False) -> list[str]:
    """What the figures lack, apart from records."""
    problems = []
    if missing := tally.processes_full + tally.spaces_full:
        problems.append(
            f"{missing} times there was no room for a process, with whatever it started: {max_processes} at one time"
            f" are the most ({MORE_PROCESSES})"
        )
    if adopted_in_part:
        problems.append(
            f"there was no room for all processes of a tree that was adopted: {max_processes} at one time are the most"
            f" ({MORE_PROCESSES})"
        )
    if tally.sharers_full:
        problems.append(
            f"{tally.sharers_full} times memory was not seen for a while, because it was shared by more processes than"
            f" are remembered"
        )
    if tally.bases_unsettled:
        # What a thread has in its hands while it unmaps: rmap_restart() in bpf/rmap_sums.bpf.h.
        table_pages = os.sysconf("SC_PAGESIZE") // _ENTRY_BYTES
        problems.append(
            f"{tally.bases_unsettled} times the rmap layer started from counters that kept changing: its figures of"
            f" that process may stay off by up to {table_pages} pages for each thread at work then"
        )
    return problems


def doubts(tally: Tally, cpus: int) -> list[str]:
    """What figures may be off by, though nothing is missing.

    Threads at work on one address space do that to each other every now and then, more often where a virtual machine's
    CPUs are taken away from under them: it must not make a recording look as if it lacked something.
    """
    if not tally.sums_unsettled:
        return []
    return [
        f"{tally.sums_unsettled} times a counter kept changing while it was summed: the rss layer's figure at that"
        f" instant, and so a peak, may be off by up to {max(_BATCH_PAGES, 2 * cpus)} pages"
    ]
