"""record's options, and what it leaves behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.command.invocation import MEMTRACK, fails, one_line, report, run, start, until

pytestmark = pytest.mark.bpf


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def left() -> set[str]:
    return {path.name for path in Path().iterdir()}


def test_without_a_name_it_is_in_the_current_directory_by_process() -> None:
    process = start("record", "--", "true", stderr=subprocess.PIPE)
    err = process.communicate()[1].decode()
    assert left() == {f"memtrack.{process.pid}.zst"}
    name = f"memtrack.{process.pid}.zst"
    assert err.splitlines()[-1] == f"recording: {name} (python -m memtrack report {name})"


def test_a_recording_is_what_the_format_says() -> None:
    assert run("record", "-o", "r", "--", "true").code == 0
    events = subprocess.run(["zstd", "-dcq", "r"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout
    assert len(events) % 48 == 0
    assert sum(report(Path("r"))["events"].values()) == len(events) // 48 > 0


@pytest.mark.parametrize(
    "options", [["-o", "there"], ["-o", "new", "--json", "there"], ["--json", "there", "-o", "new"]]
)
def test_what_exists_is_refused_before_the_command_runs(options: list[str]) -> None:
    Path("there").write_bytes(b"old")
    done = run("record", *options, "--", "touch", "ran")
    fails(done, 125, "cannot write there: file exists", "use -f to overwrite it")
    assert left() == {"there"}
    assert Path("there").read_bytes() == b"old"


@pytest.mark.parametrize("option", ["-o", "--json"])
@pytest.mark.parametrize(
    ("place", "cause"),
    [
        ("link", "it is a symbolic link"),
        ("directory", "it is a directory"),
        ("fifo", "it is not a regular file"),
        ("/dev/full", "it is not a regular file"),
        ("/dev/stdout", "it is a symbolic link"),
        ("missing/file", "no such file or directory"),
        ("/proc/self/new", "no such file or directory"),
        ("/sys/new", "permission denied|operation not permitted"),
        ("", "it is a directory"),
    ],
)
def test_no_place_for_a_file(place: str, cause: str, option: str) -> None:
    Path("link").symlink_to("elsewhere")
    Path("directory").mkdir()
    os.mkfifo("fifo")
    others = ["-o", "other"] if option == "--json" else []
    done = run("record", "-f", option, place, *others, "--", "touch", "ran")
    fails(done, 125, f"cannot write {place}.*: ({cause})", ".+")
    assert left() == {"link", "directory", "fifo"}


def test_overwriting_is_asked_for_with_f() -> None:
    for name in ("r", "j"):
        Path(name).write_bytes(b"old")
    assert run("record", "-f", "-o", "r", "--json", "j", "--", "true").code == 0
    assert report(Path("r"))["complete"]
    assert json.loads(Path("j").read_bytes())["complete"]
    assert left() == {"r", "j"}


@pytest.mark.parametrize(("command", "code"), [("no-such-program", 127), ("/", 126), ("./plain", 126)])
def test_a_command_that_cannot_be_run_leaves_nothing_and_costs_nothing(command: str, code: int) -> None:
    Path("plain").touch()
    fails(run("record", "-o", "new", "--json", "new.json", "--", command), code, "cannot run", ".+")
    assert left() == {"plain"}
    Path("old").write_bytes(b"old")
    fails(run("record", "-f", "-o", "old", "--json", "plain", "--", command), code, "cannot run", ".+")
    assert left() == {"plain", "old"}
    assert Path("old").read_bytes() == b"old"


def test_the_working_directory_has_gone() -> None:
    Path("gone").mkdir()
    script = f"cd gone; rmdir ../gone; exec {sys.executable} -m memtrack record -- true"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 125
    assert one_line(done.stderr), done.stderr
    assert "no such file or directory" in done.stderr
    script = f"mkdir gone; cd gone; rmdir ../gone; exec {sys.executable} -m memtrack record -o {Path.cwd()}/r -- true"
    assert subprocess.run(["sh", "-c", script], capture_output=True, check=False).returncode == 0


def test_json_is_the_report() -> None:
    assert run("record", "-o", "r", "--json", "j", "--", "true").code == 0
    assert run("report", "r", "--json").out == Path("j").read_text()


def test_names_that_are_not_utf_8_and_have_newlines_come_back_byte_for_byte() -> None:
    name = b"\xff\xfe\nx\x1b[31m"
    Path(os.fsdecode(name)).symlink_to("/bin/true")
    command = [b"./" + name, b"\n", b"\x80\r", "ж".encode(), b""]
    done = run("record", "-o", "r", "--json", "j", "--", *command)
    assert done.code == 0
    assert "\x1b" not in done.err
    for data in (report(Path("r")), json.loads(Path("j").read_bytes())):
        assert [os.fsencode(argument) for argument in data["command"]] == command
        assert os.fsencode(data["processes"][0]["comm"]) == name[:15]
    assert Path("j").read_bytes().isascii()


def test_a_command_as_long_as_the_kernel_takes() -> None:
    # A quarter of the stack's limit, less the environment; one argument may have 32 pages.
    argument = "x" * (32 * os.sysconf("SC_PAGESIZE") - 1)
    room = os.sysconf("SC_ARG_MAX") - 65536 - sum(len(name) + len(value) + 10 for name, value in os.environ.items())
    command = ["true", *[argument] * (room // len(argument))]
    done = run("record", "-o", "r", "--", *command)
    assert done.code == 0, done.err
    data = report(Path("r"))
    assert data["complete"]
    assert data["command"] == command[: len(data["command"])]
    assert len(done.err) < 4000
    # The arguments themselves are resident in the command, and counted.
    assert data["peak"]["rss_bytes"] > sum(map(len, command))


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["--", "printf", "%s|", "-o", "--", "--json"], "-o|--|--json|"),
        (["printf", "%s|", "-f", "--strict"], "-f|--strict|"),
        (["--", "printf", "%s|", "--help"], "--help|"),
        (["--strict", "--", "printf", "%s|", "--", "--"], "--|--|"),
    ],
)
def test_after_the_command_everything_is_its_own(arguments: list[str], command: str) -> None:
    assert run("record", "-o", "r", *arguments).out == command
    assert Path("r").exists()


# Touches 64 MiB while the recorder, its parent, is stopped: no ring is small or quick enough to be drained meanwhile.
FAULTS = """
import mmap, os, signal
recorder, memory = os.getppid(), mmap.mmap(-1, 64 << 20)
os.kill(recorder, signal.SIGSTOP)
for offset in range(0, 64 << 20, mmap.PAGESIZE):
    memory[offset] = 1
os.kill(recorder, signal.SIGCONT)
"""


def test_lost_events_are_told_and_strict_makes_them_a_failure() -> None:
    small = ["--ring-size", str(os.sysconf("SC_PAGESIZE"))]
    faults = [sys.executable, "-c", FAULTS]
    done = run("record", *small, "-o", "r", "--", *faults)
    assert done.code == 0, done
    data = report(Path("r"))
    assert data["complete"]
    assert data["lost_events"] > 0
    assert f"{data['lost_events']:,} events" in done.err
    # Figures start anew from the kernel's after the loss, so the whole of it is in the peak all the same.
    assert data["peak"]["rss_bytes"] > 64 << 20

    done = run("record", *small, "--strict", "-o", "s", "--", *faults)
    assert done.code == 125
    assert re.fullmatch(r"memtrack: \d+ events were lost \(.+\)", done.err.splitlines()[-1])
    assert report(Path("s"))["complete"]


def test_strict_is_content_where_nothing_is_lost() -> None:
    assert run("record", "--strict", "-o", "r", "--", "sh", "-c", "exit 3").code == 3


@pytest.mark.parametrize(
    "options",
    [
        ["--ring-size", "0"],
        ["--ring-size", "-1"],
        ["--ring-size", "x"],
        ["--ring-size", "5000"],
        ["--ring-size", "1e6"],
        ["--ring-size", "2GiB"],
        ["--max-processes", "0"],
        ["--max-processes", "99999999999999"],
        ["--max-processes", "many"],
        ["--resolution", ""],
        ["--resolution", "0"],
        ["--resolution", "99999999999999999999GiB"],
        ["--resolution", "1 fortnight"],
        ["--summary", "--resolution", "1ms"],
        ["--summary", "--rmap"],
        ["--summary", "-o", "r"],
        ["-o", "-"],
    ],
)
def test_values_that_make_no_sense_are_told_before_the_command_runs(options: list[str]) -> None:
    fails(run("record", *options, "--", "touch", "ran"), 125, ".+", ".+")
    fails(run("record", *options, "--json", "j", "--", "touch", "ran"), 125, ".+", ".+")
    assert not left()


def test_standard_output_is_no_place_for_the_report() -> None:
    done = run("record", "--json", "-", "--", "touch", "ran")
    fails(done, 125, "standard output is the command's", r"\./- where that is its name")
    assert not left()
    assert run("record", "--summary", "--json", "./-", "--", "true").code == 0
    assert left() == {"-"}


def test_a_summary_leaves_the_report_alone() -> None:
    done = run("record", "--summary", "--", "sh", "-c", "echo theirs; exit 3")
    assert (done.code, done.out) == (3, "theirs\n")
    assert "recording:" not in done.err
    assert not left()
    assert run("record", "--summary", "--json", "j", "--", "sh", "-c", "exit 3").code == 3
    assert left() == {"j"}
    data = json.loads(Path("j").read_bytes())
    assert data["status"]["exit_code"] == 3
    assert data["peak"]["rss_bytes"] > 0
    assert [process["comm"] for process in data["processes"]] == ["sh"]


# It has a session and a process group of its own, and its parent ends when it is itself.
DAEMON = """
setsid sleep 0.8 >/dev/null 2>&1 </dev/null &
until [ "$(cat /proc/$!/comm)" = sleep ]; do sleep 0.02; done
exit 6
"""


def ends(data: dict[str, Any]) -> list[int | None]:
    return [process["end_ns"] for process in data["processes"]]


def test_members_that_live_on_have_no_end() -> None:
    done = run("record", "-o", "r", "--", "sh", "-c", DAEMON.replace("0.8", "60"))
    assert done.code == 6
    data = report(Path("r"))
    assert data["complete"]
    alive = [process for process in data["processes"] if process["end_ns"] is None]
    for process in alive:
        os.kill(process["pid"], signal.SIGKILL)
    assert [process["comm"] for process in alive] == ["sleep"]
    assert data["processes_left"] == 1
    assert all(process["last"]["rss_bytes"] > 0 and process["exit_code"] is None for process in alive)
    assert "lived on" in done.err


def test_wait_stays_until_the_whole_tree_has_ended() -> None:
    began = time.monotonic()
    done = run("record", "--wait", "-o", "r", "--", "sh", "-c", DAEMON)
    assert done.code == 6
    assert time.monotonic() - began > 0.7
    data = report(Path("r"))
    assert None not in ends(data)
    assert data["processes_left"] == 0
    assert {process["comm"] for process in data["processes"]} >= {"sleep"}
    assert "lived on" not in done.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_waiting_for_the_tree_can_be_ended(number: signal.Signals) -> None:
    daemon = "setsid sleep 60 >/dev/null 2>&1 </dev/null & echo $!; exit 6"
    process = start(
        "record", "--wait", "-o", "r", "--", "sh", "-c", daemon, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout
    pid = int(process.stdout.readline())
    # The first process has ended and been waited for: the other is the only child in sight.
    until(lambda: not Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 6
    os.kill(pid, signal.SIGKILL)
    data = report(Path("r"))
    assert (data["complete"], data["processes_left"]) == (True, 1)


def test_two_at_a_time_see_their_own_trees_only() -> None:
    both = [
        start("record", "-o", name, "--", "sh", "-c", f"exec sleep 0.{name}", stderr=subprocess.DEVNULL)
        for name in "34"
    ]
    assert [process.wait() for process in both] == [0, 0]
    for name in "34":
        data = report(Path(name))
        assert [process["comm"] for process in data["processes"]] == ["sleep"]
        assert data["complete"]


def test_one_records_another() -> None:
    done = run("record", "-o", "outer", "--", *MEMTRACK, "record", "-o", "inner", "--", "sh", "-c", "exit 3")
    assert done.code == 3
    inner, outer = report(Path("inner")), report(Path("outer"))
    assert [process["comm"] for process in inner["processes"]] == ["sh"]
    assert [process["pid"] for process in inner["processes"]] == [outer["processes"][1]["pid"]]
    assert outer["processes"][0]["comm"].startswith("python")
    # Both saw the same process in the same counters.
    assert inner["processes"][0]["peak"]["rss_bytes"] == outer["processes"][1]["peak"]["rss_bytes"]
    assert inner["lost_events"] == outer["lost_events"] == 0


@pytest.mark.parametrize("variable", ["MEMTRACK_TRACK_RMAP", "CODSPEED_MEMTRACK_TRACK_RMAP"])
def test_the_rmap_layer_may_fail_and_takes_nothing_down(variable: str) -> None:
    done = run("record", "-o", "r", "--", "sh", "-c", "exit 3", env={**os.environ, variable: "1"})
    assert done.code == 3
    data = report(Path("r"))
    rmap = data["sources"]["rmap"]
    assert data["complete"]
    assert data["sources"]["rss"]["reason"] is None
    assert data["peak"]["rss_bytes"] > 0
    # A kernel that takes fentry has a tier, another has a reason, none has both or neither.
    assert (rmap["tier"] is None) == (rmap["reason"] is not None) == (data["rmap_peak"] is None)
    assert rmap["reason"] != "not requested (--rmap)"


def test_the_option_is_the_variables_twin() -> None:
    assert run("record", "--rmap", "-o", "r", "--", "true").code == 0
    without = run("record", "-o", "s", "--", "true", env={**os.environ, "MEMTRACK_TRACK_RMAP": "0"})
    assert without.code == 0
    assert "memtrack: " not in without.err  # nobody asked
    assert report(Path("r"))["sources"]["rmap"]["reason"] != "not requested (--rmap)"
    assert report(Path("s"))["sources"]["rmap"]["reason"] == "not requested (--rmap)"


@pytest.mark.parametrize("python", [["-O"], ["-OO"], ["-I"], ["-W", "error"], ["-X", "dev"]])
def test_with_the_interpreters_options(python: list[str]) -> None:
    command = [sys.executable, *python, "-m", "memtrack", "record", "-o", "r", "--", "sh", "-c", "exit 3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith("command "), done.stderr
    assert report(Path("r"))["complete"]
