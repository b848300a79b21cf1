"""What goes wrong while a command runs: the command goes on, and what has been written can be read."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import memtrack
from memtrack.events import EventType
from tests.command.invocation import CONFINE, MEMTRACK, one_line, report, run, start, until

pytestmark = pytest.mark.bpf

# Touches pages and gives them back, as fast as it can, so many times: two events each.
CHURN = """
import mmap, sys
m = mmap.mmap(-1, 64 * 4096)
for _ in range(int(sys.argv[1]) // 64):
    for offset in range(0, len(m), 4096):
        m[offset] = 1
    m.madvise(mmap.MADV_DONTNEED)
print("done", flush=True)
sys.exit(7)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path


def on_disk_of(
    size_bytes: int, place: Path, command: list[str]
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Records onto a file system of that size, which goes away; and what `report` and the file say."""
    (place / "disk").mkdir()
    recording = place / "disk" / "r"
    words = " ".join(MEMTRACK)
    script = f"""
    {words} record -o {recording} -- "$@"
    echo "status $?"
    {words} report --json {recording} >{place}/report
    zstd -dcq {recording} | wc -c >{place}/bytes
    """
    done = subprocess.run(
        [*CONFINE, "--disk", f"{place}/disk={size_bytes}", "sh", "-c", script, "sh", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    return done, json.loads((place / "report").read_text())


def test_a_disk_that_fills_up_costs_the_recording_and_not_the_command(place: Path) -> None:
    # The first flush fits, being early; 60,000 events at about 3.5 bytes do not.
    churn = [sys.executable, "-c", f"import time; time.sleep(1.2)\n{CHURN}", "30000"]
    done, data = on_disk_of(64 << 10, place, churn)
    # The command ran to its end, and its own status gives way to the failure.
    assert done.stdout == "done\nstatus 125\n"
    last = done.stderr.splitlines()[-1]
    assert last == (
        "memtrack: cannot write the recording: no space left on device "
        "(free some space or write elsewhere with -o; what was written up to then can be read)"
    )
    # The summary is of everything all the same.
    assert "ended           with exit status 7" in done.stderr
    # What is there is whole frames with what came first, and says that it is not all.
    assert data["complete"] is False
    assert data["problems"]
    assert data["processes"][0]["comm"].startswith("python")
    assert data["peak"]["rss_bytes"] > 0
    events = sum(data["events"].values())
    assert 0 < events < 60000
    assert int((place / "bytes").read_text()) == events * 48


def test_a_disk_that_is_full_from_the_start_starts_nothing(place: Path) -> None:
    (place / "disk").mkdir()
    script = f"""
    dd if=/dev/zero of={place}/disk/all bs=4096 status=none 2>/dev/null
    {" ".join(MEMTRACK)} record -o {place}/disk/r -- touch {place}/ran
    echo "status $?"; ls {place}/disk
    """
    done = subprocess.run(
        [*CONFINE, "--disk", f"{place}/disk=65536", "sh", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout == "status 125\nall\n"
    assert one_line(done.stderr), done.stderr
    assert "no space left on device" in done.stderr
    assert not (place / "ran").exists()


def test_a_limit_on_file_sizes_is_no_end_by_signal(place: Path) -> None:
    done = run(
        "record",
        "-o",
        place / "r",
        "--",
        sys.executable,
        "-c",
        CHURN,
        "30000",
        within=[*CONFINE, "--limit", "FSIZE=16384"],
    )
    assert (done.code, done.out) == (125, "done\n")
    assert done.err.splitlines()[-1].startswith("memtrack: cannot write the recording: file too large (")
    assert report(place / "r")["complete"] is False


def test_a_report_that_does_not_fit_is_told_and_not_left(place: Path) -> None:
    (place / "disk").mkdir()
    # The report lists every process; hundreds of them take more than a page, and the disk has none left.
    done = run(
        "record",
        "-o",
        place / "r",
        "--json",
        place / "disk" / "j",
        "--",
        "sh",
        "-c",
        "for i in $(seq 40); do /bin/true; done",
        within=[*CONFINE, "--disk", f"{place}/disk=4096"],
    )
    assert done.code == 125
    assert done.err.splitlines()[-1] == (
        f"memtrack: cannot write {place}/disk/j: no space left on device (free some space, or name another place)"
    )
    assert report(place / "r")["complete"]


# One page every 5 ms, told on stdout after each; all of it is kept.
STEADY = """
import mmap, time
m = mmap.mmap(-1, 64 << 20)
for offset in range(0, len(m), 4096):
    m[offset] = 1
    print(time.monotonic_ns(), flush=True)
    time.sleep(0.005)
"""


def test_killed_midway_it_leaves_a_file_of_all_but_the_last_second_and_the_command_alone(place: Path) -> None:
    command = [sys.executable, "-c", STEADY]
    with start(
        "record", "-o", place / "r", "--", *command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout
        touches = [int(process.stdout.readline())]
        while touches[-1] - touches[0] < 2_300_000_000:
            touches.append(int(process.stdout.readline()))
        process.kill()
        killed_ns = time.monotonic_ns()
        # The command has not noticed.
        for _ in range(20):
            assert process.stdout.readline()
        with memtrack.open(place / "r") as recording:
            events = list(recording.events())
        (member,) = recording.processes
        os.kill(member.pid, signal.SIGKILL)
    assert not recording.complete
    assert recording.problems
    assert member.state == "alive"
    last = [event for event in events if event.type == EventType.RSS][-1]
    # Each touch is an event, so the last that was written tells when that was: a second ago at most, and what two
    # threads may have to wait for a processor, which is no more than the command, too, had to wait at worst.
    late_ns = max(after - before for before, after in itertools.pairwise(touches))
    assert killed_ns - last.time_ns < 1_000_000_000 + 3 * late_ns
    written = sum(touch < last.time_ns for touch in touches)
    assert member.last.shmem_bytes is not None
    assert member.last.shmem_bytes >= written * os.sysconf("SC_PAGESIZE")


def test_a_recorder_that_stands_still_stops_nobody(place: Path) -> None:
    command = ["sh", "-c", 'read go; exec "$@"', "sh", sys.executable, "-c", CHURN, "30000"]
    process = start(
        "record", "-o", place / "r", "--", *command,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with process:
        until(lambda: Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
        process.send_signal(signal.SIGSTOP)
        assert process.stdin
        assert process.stdout
        process.stdin.write(b"go\n")
        process.stdin.close()
        assert process.stdout.readline() == b"done\n"
        process.send_signal(signal.SIGCONT)
    assert process.returncode == 7
    assert report(place / "r")["complete"]


def test_a_file_that_is_taken_away_meanwhile_is_no_trouble(place: Path) -> None:
    done = run("record", "-o", place / "r", "--", "sh", "-c", f"rm {place}/r; exit 3")
    assert done.code == 3
    assert "ended           with exit status 3" in done.err


def test_a_file_that_is_cut_meanwhile_is_no_trouble(place: Path) -> None:
    done = run("record", "-o", place / "r", "--", "sh", "-c", f": >{place}/r; exit 3")
    assert done.code == 3
