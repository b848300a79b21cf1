"""Real recordings come to the same in both reducers, and in the recorder, which was fed in other pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import memtrack
from memtrack.reader import Reader
from memtrack.reducer import NativeTimeline, of_header
from memtrack.timeline import Timeline

pytestmark = pytest.mark.bpf

# Forks, pipes, execs, a few short-lived processes at a time, and a parent that waits for all of them.
SCRIPT = """
for i in 1 2 3 4 5 6 7 8; do (echo $i; cat /proc/self/maps) | sort >/dev/null & done
wait
head -c 20000000 /dev/zero | tail -c 10000000 | wc -c >/dev/null
"""


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rmap": True},
        {"ring_bytes": 4096},  # loses some
        {"rmap": True, "ring_bytes": 16384},
        {"resolution": "64KiB"},
    ],
    ids=str,
)
def test_real_recordings(options: dict[str, Any], tmp_path: Path, counters_are_percpu: bool) -> None:
    path = tmp_path / "recording"
    if "resolution" in options and not counters_are_percpu:
        pytest.skip("there is no resolution before Linux 6.2")
    with path.open("w+b") as output:
        recorded = memtrack.record(["sh", "-c", SCRIPT], output=output, **options)
    with Reader(path) as reader:
        plain, native = Timeline.of_header(reader.header), of_header(reader.header)
        assert isinstance(native, NativeTimeline)
        for frame in reader.views():
            plain.feed(frame)
            native.feed(frame)
            assert native.snapshot() == plain.snapshot()
    assert reader.complete
    result = native.result()
    assert result == plain.result()
    assert (recorded.peak, recorded.processes) == (result.peak, result.processes)
    assert len(result.processes) > 10 or result.lost_events
