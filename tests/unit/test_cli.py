"""The command line where nothing is recorded: one line for every mistake, and what becomes of output."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from memtrack import cli
from memtrack.tracefile import Writer

MEMTRACK = (sys.executable, "-m", "memtrack")


def run(*arguments: str, python: Sequence[str] = (), **options: Any) -> subprocess.CompletedProcess[str]:
    options.setdefault("stdout", subprocess.PIPE)
    return subprocess.run(
        [sys.executable, *python, "-m", "memtrack", *arguments],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
        **options,
    )


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Of a command whose name no terminal should get as it is."""
    path = tmp_path / "recording.zst"
    with path.open("wb") as file:
        writer = Writer(
            file, {"page_size": 4096, "start_ns": 0, "command": ["caf\u00e9", "\u0436", "a\nb\x1b[31m", "\udcff"]}
        )
        writer.finish({"status": {"exit_code": 0, "signal": None}, "end_ns": 10, "lost_events": 0})
    return path


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        ([], "nothing to do"),
        (["record"], "no command to record"),
        (["record", "--"], "no command to record"),
        (["record", "-o", "x", "-f", "--strict", "--wait", "--rmap"], "no command to record"),
        (["record", "-o"], "argument -o: expected one argument"),
        (["record", "--bogus", "--", "true"], "unrecognized arguments: --bogus"),
        # A prefix is no option: it would change its meaning with the next one.
        (["record", "--stric", "--", "true"], "unrecognized arguments: --stric"),
        (["record", "-o", "a", "--json", "./a", "--", "true"], "the recording and the report cannot be one file"),
        (["nonsense"], "argument COMMAND: invalid choice: 'nonsense'"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
        (["\x1b[31m\n"], r"argument COMMAND: invalid choice: '\\x1b[31m\\n'"),
        (["report"], "the following arguments are required: FILE"),
        (["report", "a", "b"], "unrecognized arguments: b"),
        (["report", "a", "--x\ny"], r"unrecognized arguments: --x\ny"),
        (["doctor", "x"], "unrecognized arguments: x"),
        (["report", "missing"], "cannot read missing: no such file or directory (name a file that"),
        (["report", "."], "cannot read .: is a directory (name a file in it)"),
        (["report", "a\x1b[31m\nb"], r"cannot read a\x1b[31m\nb: no such file or directory"),
    ],
)
def test_every_mistake_is_one_line_and_125(
    arguments: list[str], cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 125
    out, err = capfd.readouterr()
    assert out == ""
    assert re.fullmatch(rf"memtrack: .*{re.escape(cause)}.*\n", err), err
    assert err.startswith("memtrack: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "cause"),
    [(b"", "empty"), (b"no recording at all", "not"), (b"\x28\xb5\x2f\xfd", "not|no header")],
)
def test_a_file_that_is_no_recording_is_one_line(content: bytes, cause: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    done = run("report", "file", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (125, "")
    assert re.fullmatch(rf"memtrack: .*({cause}).*\n", done.stderr), done.stderr


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["record", "--help"], ["report", "-h"], ["doctor", "-h"]]
)
def test_help_and_version_are_no_mistakes(arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert "memtrack" in done.stdout


def test_help_names_every_option_of_record() -> None:
    text = run("record", "--help").stdout
    assert {"-o", "-f", "--rmap", "--json", "--strict", "--wait"} <= set(re.findall(r"(?<!\S)--?[a-z]+", text))
    assert "125" in text


@pytest.mark.parametrize("python", [["-O"], ["-OO"], ["-I"], ["-E"], ["-W", "error"], ["-X", "dev"], ["-X", "utf8=0"]])
def test_with_the_interpreters_options(python: list[str], recording: Path) -> None:
    done = run("report", str(recording), python=python)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_name_is_shown_without_what_moves_the_cursor(recording: Path) -> None:
    done = run("report", str(recording))
    assert r"'a\nb\x1b[31m' '\xff'" in done.stdout


def test_what_the_output_has_no_character_for_is_escaped(recording: Path) -> None:
    done = run("report", str(recording), env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert r"'caf\xe9' '\u0436'" in done.stdout


def test_json_is_ascii_and_keeps_every_byte(recording: Path) -> None:
    done = run("report", str(recording), "--json", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.stdout.isascii()
    assert r"caf\u00e9" in done.stdout
    assert r"\udcff" in done.stdout


@pytest.mark.parametrize(
    "arguments", [["report", "R"], ["report", "R", "--json"], ["doctor"], ["--help"], ["--version"]]
)
def test_a_full_disk_behind_stdout_is_told(arguments: list[str], recording: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = run(*(str(recording) if word == "R" else word for word in arguments), stdout=full)
    assert done.returncode == 125
    assert done.stderr == (
        "memtrack: cannot write to standard output: no space left on device (redirect it to a file)\n"
    )


def shell(script: str) -> subprocess.CompletedProcess[str]:
    command = " ".join(MEMTRACK)
    script = script.replace("MEMTRACK", command)
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("option", ["", "--json"])
def test_a_closed_stdout_is_told(option: str, recording: Path) -> None:
    done = shell(f"MEMTRACK report {recording} {option} >&-")
    assert done.returncode == 125
    assert done.stderr == "memtrack: cannot write to standard output: bad file descriptor (redirect it to a file)\n"


def test_a_closed_stderr_changes_no_status(recording: Path) -> None:
    assert shell(f"MEMTRACK report {recording} 2>&-").returncode == 0
    done = shell("MEMTRACK report missing 2>&-")
    assert (done.returncode, done.stdout) == (125, "")
    done = shell("MEMTRACK report missing 2>/dev/full")
    assert (done.returncode, done.stdout) == (125, "")
    assert shell("MEMTRACK report missing <&- >&- 2>&-").returncode == 125


def test_a_reader_that_has_gone_ends_it_quietly(recording: Path) -> None:
    # As cat(1) would end, and nobody sees a complaint.
    reader, writer = os.pipe()
    os.close(reader)
    done = run("report", str(recording), stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")


def test_an_interrupt_ends_it_as_the_shell_expects(recording: Path) -> None:
    fifo = recording.with_name("fifo")
    os.mkfifo(fifo)
    process = subprocess.Popen([*MEMTRACK, "report", fifo], stderr=subprocess.PIPE)
    with process, fifo.open("wb") as writer:  # opens once memtrack reads
        writer.write(recording.read_bytes()[:10])
        writer.flush()
        # It must wait for more by then: a signal just before a system call does not end that.
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (-signal.SIGINT, b"")


def test_without_the_extension_recording_is_refused_and_reading_works(recording: Path) -> None:
    code = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == "memtrack._native":
            raise ImportError("built for another machine", name=name)
sys.meta_path.insert(0, Absent())
from memtrack import cli
print(cli.main(["report", {str(recording)!r}]), flush=True)
sys.exit(cli.main(["record", "--", "true"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=recording.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 125
    assert done.stdout.endswith("0\n")
    assert done.stderr == (
        "memtrack: cannot load the native extension: built for another machine (reinstall memtrack for this machine)\n"
    )
    assert list(recording.parent.iterdir()) == [recording]


def test_a_mistake_of_ours_is_not_the_commands_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], recording: Path
) -> None:
    def broken(_result: object) -> str:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("memtrack.report.to_text", broken)
    assert cli.main(["report", str(recording)]) == 125
    # The whole story: nobody can do anything about it but we.
    assert "ZeroDivisionError: a bug" in capsys.readouterr().err


def test_files_beside_it_are_not_taken_for_modules(recording: Path) -> None:
    for name in ("queue", "json", "zstandard", "memtrack"):
        (recording.parent / f"{name}.py").write_text("raise SystemExit('hijacked')")
    program = Path(sys.executable).with_name("memtrack")
    done = subprocess.run(
        [program, "report", recording], cwd=recording.parent, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def no_directory(tmp_path: Path) -> Iterator[None]:
    """A working directory that has been removed."""
    before = Path.cwd()
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    yield
    os.chdir(before)


@pytest.mark.usefixtures("no_directory")
def test_without_a_working_directory(recording: Path) -> None:
    done = run("report", str(recording), python=["-P"] if sys.version_info >= (3, 11) else ["-I"])
    assert (done.returncode, done.stderr) == (0, "")
