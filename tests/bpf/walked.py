"""What processes hold by the kernel's own walk of their page tables."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from memtrack.figures import Figures


def walked(pids: Iterable[int]) -> Figures:
    """By smaps_rollup. Shared memory is told in proportion, and so as it is for who has it alone."""
    sums = dict.fromkeys(("Rss", "Anonymous", "Pss_Shmem", "Swap"), 0)
    for pid in pids:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        for name in sums:
            (kib,) = re.findall(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
            sums[name] += int(kib) << 10
    rss, anon, shmem, swap = sums.values()
    return Figures(rss, anon, rss - anon - shmem, shmem, swap)
