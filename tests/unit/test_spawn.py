"""Starting a command as env(1) would, and what is said where that cannot be done."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memtrack import invoker, spawn
from memtrack.errors import CommandError, MemtrackError, UsageError
from memtrack.spawn import Argument

SELF = invoker.current()


def output_of(command: list[Argument], **options: Any) -> str:
    process = spawn.start(command, SELF, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, **options)
    out, _ = process.communicate(timeout=60)
    return out.decode()


def program(path: Path, content: str, mode: int = 0o755) -> Path:
    path.write_text(content)
    path.chmod(mode)
    return path


def refusal(command: list[Argument], **options: Any) -> tuple[int, str]:
    with pytest.raises(MemtrackError) as failed:
        spawn.start(command, SELF, **options)
    return failed.value.exit_code, str(failed.value)


def status_of_env(*command: str) -> int:
    return subprocess.run(["env", *command], capture_output=True, check=False).returncode


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """One of each that cannot be run."""
    (tmp_path / "directory").mkdir()
    program(tmp_path / "no-permission", "#!/bin/sh\n", 0o644)
    program(tmp_path / "no-interpreter", "#!/nowhere/sh\n")
    program(tmp_path / "interpreter-is-directory", "#!/tmp\n")
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("missing", r"no such file or directory \(check the name, PATH, and the interpreter"),
        ("missing/program", "no such file or directory"),
        ("no-interpreter", "no such file or directory"),
        ("directory", r"it is a directory \(name a program in it\)"),
        ("no-permission", r"permission denied \(it needs execute permission"),
        ("no-permission/program", "not a directory"),
        ("interpreter-is-directory", "permission denied"),
        ("loop", "too many levels of symbolic links"),
        ("n" * 5000, "file name too long"),
    ],
)
def test_what_cannot_be_run_ends_as_under_env(name: str, cause: str, place: Path) -> None:
    with pytest.raises(CommandError, match=rf"^cannot run .*: {cause}") as failed:
        spawn.start([place / name], SELF)
    assert failed.value.exit_code == status_of_env(str(place / name))
    assert failed.value.exit_code == (127 if "no such file" in cause else 126)


@pytest.mark.parametrize("name", ["", "no-such-program-anywhere"])
def test_a_name_without_a_slash_that_is_nowhere(name: str) -> None:
    assert refusal([name])[0] == 127 == status_of_env(name)


def test_path_is_searched_past_what_cannot_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, mode in enumerate((0o644, 0o755)):
        (tmp_path / str(number)).mkdir()
        program(tmp_path / str(number) / "found", f"#!/bin/sh\necho {number}\n", mode)
    monkeypatch.setenv("PATH", f"{tmp_path}/0:/etc/passwd:{tmp_path}/1")
    assert output_of(["found"]) == "1\n"
    (tmp_path / "1" / "found").unlink()
    # There was one, so it is not "not found".
    assert refusal(["found"])[0] == 126


def test_a_script_without_an_interpreter_line_is_the_shells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = program(tmp_path / "script", 'printf "%s|" "$0" "$@"\n')
    assert output_of([script, "a b", "-c"]) == f"{script}|a b|-c|"
    # By PATH too, and then it is found where execvp(3) finds it.
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert output_of(["script"]) == f"{script}|"
    assert output_of(["script"], env={"PATH": str(tmp_path)}) == f"{script}|"


def test_a_program_of_no_machine_is_left_to_the_shell_as_well(tmp_path: Path) -> None:
    elf = program(tmp_path / "elf", "")
    elf.write_bytes(b"\x7fELF" + bytes(60))
    elf.chmod(elf.stat().st_mode | stat.S_IXUSR)
    process = spawn.start([elf], SELF, stderr=subprocess.DEVNULL)
    assert process.wait() == status_of_env(str(elf))


def test_arguments_may_be_paths_bytes_and_not_utf_8() -> None:
    process = spawn.start([Path("printf"), b"%s|%s", b"\xff\xfe", "a\nb\udcff"], SELF, stdout=subprocess.PIPE)
    assert process.communicate()[0] == b"\xff\xfe|a\nb\xff"


def test_arguments_beyond_the_limit() -> None:
    # One argument may have 32 pages (MAX_ARG_STRLEN), whatever ARG_MAX is.
    code, text = refusal(["true", "x" * (32 * os.sysconf("SC_PAGESIZE"))])
    assert (code, text) == (
        126,
        "cannot run true: argument list too long (pass fewer or shorter arguments, or less environment)",
    )


def test_a_null_byte_is_nobodys_argument() -> None:
    code, text = refusal(["true", "a\0b"])
    assert code == 126
    assert text.startswith("cannot run true: ")
    assert "null byte" in text


@pytest.mark.parametrize("command", ["ls -l", b"ls"])
def test_a_string_is_no_command(command: Any) -> None:
    with pytest.raises(UsageError, match=r"^the command is one string \(give a list"):
        spawn.start(command, SELF)


def test_no_command() -> None:
    assert refusal([]) == (125, "no command given (name a program to run)")


def test_a_missing_working_directory_is_not_the_programs_fault(tmp_path: Path) -> None:
    code, text = refusal(["true"], cwd=tmp_path / "gone")
    assert code == 126
    assert text == f"cannot run true in {tmp_path}/gone: no such file or directory"


def test_what_a_name_has_in_it_does_no_harm_on_a_terminal() -> None:
    assert refusal(["\x1b[31m\nno"])[1].startswith(r"cannot run \x1b[31m\nno: ")


def test_without_another_process_it_is_not_the_programs_fault() -> None:
    # In a process of its own: the limit counts all of a user's processes, and holds for root only without privileges.
    code = """
import os, resource
from memtrack import invoker, spawn
from memtrack.errors import MemtrackError
if os.getuid() == 0:
    os.setgroups([]); os.setresgid(65533, 65533, 65533); os.setresuid(65533, 65533, 65533)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
try:
    spawn.start(["true"], invoker.current())
except MemtrackError as error:
    print(error.exit_code, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == (
        "125 cannot start a process: resource temporarily unavailable (see ulimit -a and the capabilities)\n"
    ), done


def test_inheritable_descriptors_are_passed_on_and_others_are_not(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (tmp_path / "file").open() as file:
        os.set_inheritable(file.fileno(), True)
        other = os.open("/dev/null", os.O_RDONLY)
        try:
            shown = output_of(
                ["sh", "-c", f"[ /dev/fd/{file.fileno()} -ef {tmp_path}/file ] && [ ! -e /dev/fd/{other} ]; echo $?"]
            )
        finally:
            os.close(other)
    assert shown == "0\n"
