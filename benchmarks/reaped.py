"""What thousands of processes, one after the other, leave: in the recorder's memory, and in the kernel.

``python -m benchmarks.reaped FILE`` is the recorder: it records into FILE with the defaults, and prints what it found.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import programs, watch
from memtrack import Tracker

FEW, MANY = 1_000, 10_000
# What spawn starts beside those that it is asked for: itself, and one that it looks at.
_BESIDE = 2
# More than the second that events stay in the recorder at most.
_SETTLE_S = 1.5
# The kernel frees what BPF objects were made of some time after the last descriptor of them is closed.
_FREED_S = 10.0


def measure(_quick: bool) -> dict[str, Any]:
    """In a process of its own, whose memory is the recorder's and nobody else's."""
    with tempfile.TemporaryDirectory(prefix="memtrack-bench-") as directory:
        command = [sys.executable, "-m", "benchmarks.reaped", str(Path(directory, "recording"))]
        done = subprocess.run(command, cwd=programs.ROOT, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def text(found: dict[str, Any]) -> str:
    lines = [
        f"{MANY:,} processes forked and reaped one after the other, recorded with the defaults",
        "",
        f"{found['events']:,} events, {found['lost']:,} lost, {found['left_out']:,} processes left out",
        f"left: {found['descriptors_left']} descriptors, {_left(found)} of {found['bpf_objects']} BPF objects",
        f"recorder's memory, without its ring, {FEW:,} processes on: {_mib(found['few_bytes'])}",
    ]
    later = {"many_bytes": f"{MANY:,} processes on", "result_bytes": "with the result, a row for each"}
    for name, when in later.items():
        each = (found[name] - found["few_bytes"]) / (MANY - FEW)
        lines.append(f"... {when}: {_mib(found[name])}, {each:,.0f} B for each process more")
    return "\n".join(lines) + "\n"


def wrong(found: dict[str, Any]) -> list[str]:
    named = {
        "left_out": "processes were left out",
        "descriptors_left": "descriptors are left",
        "bpf_objects_left": "BPF objects are left",
    }
    return [f"after {MANY:,} processes: {found[name]} {what}" for name, what in named.items() if found[name]]


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.1f} MiB"


def _left(found: dict[str, Any]) -> str:
    left = found["bpf_objects_left"]
    return "(bpftool is not installed)" if left is None else str(left)


def main() -> int:
    before = set(Path("/proc/self/fd").iterdir())
    found: dict[str, Any] = {}
    with Path(sys.argv[1]).open("w+b") as file:
        with Tracker(file) as tracker:
            objects = _bpf_objects()
            _spawn(tracker, FEW)
            found["few_bytes"] = _memory_bytes()
            _spawn(tracker, MANY - FEW)
            found["many_bytes"] = _memory_bytes()
        recording = tracker.recording
        found["result_bytes"] = _memory_bytes()
        found["events"] = sum(recording.event_counts.values())
        found["lost"] = recording.lost_events
        found["left_out"] = MANY - len(recording.processes)
        recording.close()
    found["descriptors_left"] = len(set(Path("/proc/self/fd").iterdir()) - before)
    found["bpf_objects"] = len(objects)
    found["bpf_objects_left"] = _left_in_kernel(objects)
    print(json.dumps(found))
    return 0


def _spawn(tracker: Tracker, count: int) -> None:
    """So many processes, to the end of the last, and what is recorded of them to the file."""
    command = [programs.program("spawn"), str(count - _BESIDE), "1", "-1", programs.program("nothing")]
    if status := tracker.spawn(command, stdout=subprocess.DEVNULL).wait():
        raise subprocess.CalledProcessError(status, command)
    time.sleep(_SETTLE_S)


def _memory_bytes() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Rss:")) - watch.ring_bytes(os.getpid())


def _bpf_objects() -> set[tuple[str, int]]:
    """Kind and id of what this process holds by a descriptor."""
    found = set()
    for entry in Path("/proc/self/fdinfo").iterdir():
        try:
            said = entry.read_text()
        except FileNotFoundError:  # the listing's own
            continue
        # A link's descriptor tells its program too.
        kinds = dict(re.findall(r"^(link|map|prog)_id:\t(\d+)$", said, re.MULTILINE))
        found |= {(kind, int(kinds[kind])) for kind in ("link", "map", "prog") if kind in kinds}
    return found


def _left_in_kernel(objects: set[tuple[str, int]]) -> int | None:
    """How many of them there still are, when there has been time to free them; None if nobody can tell."""
    if not shutil.which("bpftool"):
        return None
    deadline = time.monotonic() + _FREED_S
    while (left := objects & _in_kernel()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return len(left)


def _in_kernel() -> set[tuple[str, int]]:
    return {
        (kind, entry["id"])
        for kind in ("link", "map", "prog")
        for entry in json.loads(subprocess.run(["bpftool", "-j", kind, "show"], capture_output=True, check=True).stdout)
    }


if __name__ == "__main__":
    sys.exit(main())
