"""The polling contender: ``python -m benchmarks.poll FILE CMD...`` writes the most RSS it saw a command's tree hold."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

INTERVAL_S = 0.01


def tree_bytes(root: psutil.Process) -> int:
    total = 0
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total


def main() -> int:
    target = subprocess.Popen(sys.argv[2:])
    root = psutil.Process(target.pid)
    peak_bytes = 0
    while target.poll() is None:
        with suppress(psutil.NoSuchProcess):
            peak_bytes = max(peak_bytes, tree_bytes(root))
        time.sleep(INTERVAL_S)
    Path(sys.argv[1]).write_text(str(peak_bytes))
    return target.returncode


if __name__ == "__main__":
    sys.exit(main())
