"""The command under memtrack finds everything as it would without: memtrack changes nothing but its own output."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.command.invocation import MEMTRACK, Done, report, run

pytestmark = pytest.mark.bpf

# Everything a process has from its parent that its own kernel shows; what differs from run to run is left out.
STATE = """
umask
pwd
ulimit -a
ulimit -H -a
cut -d ' ' -f 5,6,7,18,19,40,41 /proc/self/stat
cat /proc/self/oom_score_adj /proc/self/cgroup /proc/self/personality /proc/self/timerslack_ns 2>/dev/null
grep -E '^(Umask|Uid|Gid|Groups|Sig(Blk|Ign|Cgt)|Cap|NoNewPrivs|Seccomp|(Cpus|Mems)_allowed_list)' /proc/self/status
for namespace in /proc/self/ns/*; do readlink $namespace; done
"""

# What an interpreter adds of its own accord in the C locale has to be found out in the C locale.
POOR = {"PATH": os.environ["PATH"], "ODD": "\udcff=\n"}


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return tmp_path / "recording.zst"


def with_and_without(
    recording: Path, command: list[str], environment: Mapping[str, str] | None = None
) -> tuple[Done, Done]:
    """Both by way of env(1): what starts a program by its path may leave signals ignored that it would not by PATH."""
    bare = subprocess.run(
        ["env", *command], stdin=subprocess.DEVNULL, capture_output=True, env=environment, check=False
    )
    without = Done(bare.returncode, bare.stdout.decode(errors="surrogateescape"), bare.stderr.decode())
    return run("record", "-o", recording, "--", *command, within=["env"], env=environment), without


@pytest.mark.parametrize("environment", [None, POOR, {**POOR, "LC_ALL": "C"}, {**POOR, "LC_CTYPE": "POSIX"}])
def test_the_environment(environment: Mapping[str, str] | None, recording: Path) -> None:
    recorded, bare = with_and_without(recording, ["env", "-0"], environment)
    assert sorted(recorded.out.split("\0")) == sorted(bare.out.split("\0"))


def test_what_else_a_process_inherits(recording: Path) -> None:
    recorded, bare = with_and_without(recording, ["sh", "-c", STATE])
    assert recorded.out == bare.out
    assert recorded.out.count("\n") > 40


def test_what_else_a_process_inherits_where_it_is_not_usual(recording: Path, tmp_path: Path) -> None:
    script = f"umask 0137; ulimit -n 250; ulimit -c 0; cd {tmp_path}; "
    unusual = ["nice", "-n", "5", "sh", "-c", f'{script} exec "$@"', "sh"]
    bare = subprocess.run([*unusual, "sh", "-c", STATE], stdin=subprocess.DEVNULL, capture_output=True, check=True)
    recorded = run("record", "-o", recording, "--", "sh", "-c", STATE, within=unusual)
    assert recorded.out == bare.stdout.decode()
    assert "0137" in recorded.out
    assert recording.stat().st_mode & 0o777 == 0o640


def test_descriptors(recording: Path, tmp_path: Path) -> None:
    # Standard output and error are pipes of their own in each run, and one descriptor is for the listing itself.
    code = """
import os
for fd in (0, *range(3, 256)):
    if os.path.exists(f"/proc/self/fd/{fd}"):
        print(fd, os.readlink(f"/proc/self/fd/{fd}"))
"""
    listing = [sys.executable, "-c", code]
    (tmp_path / "seven").touch()
    opened = ["sh", "-c", f'exec 7<{tmp_path}/seven; exec "$@"', "sh"]
    bare = subprocess.run([*opened, *listing], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
    recorded = run("record", "-o", recording, "--", *listing, within=opened)
    assert recorded.out == bare.stdout.decode()
    assert f"7 {tmp_path}/seven" in recorded.out


def test_a_make_that_hands_out_jobs(tmp_path: Path) -> None:
    (tmp_path / "inner.mk").write_text("all: a b\na b:\n\t@echo $@; sleep 0.05\n")
    (tmp_path / "Makefile").write_text(
        f"all:\n\t@+{' '.join(MEMTRACK)} record -o recording.zst -- $(MAKE) --no-print-directory -f inner.mk\n"
    )
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    done = subprocess.run(
        ["make", "--no-print-directory", "-j2"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "jobserver" not in done.stderr
    assert sorted(done.stdout.split()) == ["a", "b"]


def test_standard_input_goes_to_the_command_untouched(recording: Path, tmp_path: Path) -> None:
    data = bytes(range(256)) * 500
    (tmp_path / "input").write_bytes(data)
    with (tmp_path / "input").open("rb") as source:
        assert run("record", "-f", "-o", recording, "--", "true", stdin=source).code == 0
        assert os.lseek(source.fileno(), 0, os.SEEK_CUR) == 0
        done = run("record", "-f", "-o", recording, "--", "cat", stdin=source)
    assert done.out.encode(errors="surrogateescape") == data


def test_standard_output_is_the_commands_alone(recording: Path) -> None:
    assert run("record", "-o", recording, "--", "printf", r"a\0\377\nb").out == "a\0\udcff\nb"


def test_standard_error_has_the_commands_words_before_ours(recording: Path) -> None:
    done = run("record", "-o", recording, "--", "sh", "-c", "echo theirs >&2")
    assert (done.out, done.err.splitlines()[0]) == ("", "theirs")
    assert done.err.splitlines()[1].startswith("command ")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", ">&- 2>&-", "<&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_stay_closed_and_nothing_takes_their_place(closed: str, tmp_path: Path) -> None:
    script = f"""
    {" ".join(MEMTRACK)} record -o recording.zst -- sh -c '
        for fd in 0 1 2; do [ -e /proc/$$/fd/$fd ] && echo $fd open >>streams; done; [ -t 5 ]; exit 9' {closed}
    echo status $? >>streams
    """
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    still_open = {"0", "1", "2"} - {{"<": "0", ">": "1", "2": "2"}[word[0]] for word in closed.split()}
    assert (tmp_path / "streams").read_text().splitlines() == [*(f"{fd} open" for fd in sorted(still_open)), "status 9"]
    assert done.stdout == ""
    assert done.stderr == "" or "2" in still_open
    data = report(tmp_path / "recording.zst")
    assert (data["complete"], data["status"]["exit_code"]) == (True, 9)


def test_a_reader_of_the_command_that_goes_away_is_the_commands_matter(recording: Path) -> None:
    script = f"{' '.join(MEMTRACK)} record -o {recording} -- yes | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "y\n141\n"
    assert report(recording)["complete"]


def test_a_summary_that_nobody_reads_changes_no_status(recording: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run("record", "-o", recording, "--", "sh", "-c", "exit 4", stderr=writer)
    finally:
        os.close(writer)
    assert done.code == 4
    assert report(recording)["complete"]


@pytest.mark.parametrize("status", [0, 1, 2, 125, 126, 127, 128, 255])
def test_the_status_is_the_commands(status: int, recording: Path) -> None:
    assert run("record", "-o", recording, "--", "sh", "-c", f"exit {status}").code == status
    assert report(recording)["status"] == {"exit_code": status, "signal": None}


@pytest.mark.parametrize("number", [1, 9, 15, 64])
def test_a_signal_that_ended_it_is_128_and_its_number(number: int, recording: Path) -> None:
    done = run("record", "-o", recording, "--", sys.executable, "-c", f"import os; os.kill(os.getpid(), {number})")
    assert done.code == 128 + number
    assert report(recording)["status"] == {"exit_code": None, "signal": number}
