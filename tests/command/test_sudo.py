"""Under sudo: root's rights for the probes alone; the command and the files are the user's who asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.command.invocation import CONFINE, MEMTRACK, Argument, Done, fails, report, run

pytestmark = pytest.mark.bpf

USER, GROUP, EXTRA = 41001, 41002, 41003
SUDO = {"SUDO_UID": str(USER), "SUDO_GID": str(GROUP), "SUDO_USER": "tester", "SUDO_COMMAND": "memtrack"}
PASSWD = f"root:x:0:0::/root:/bin/sh\ntester:x:{USER}:{GROUP}::/home/tester:/bin/tester-shell\n"
GROUPS = f"root:x:0:\ntester:x:{GROUP}:\nextra:x:{EXTRA}:tester\n"


@pytest.fixture
def place() -> Iterator[Path]:
    """Root's, and everybody may enter it; pytest's own directories are for nobody else."""
    with tempfile.TemporaryDirectory(prefix="memtrack-test-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture
def home(place: Path) -> Path:
    """The user's own directory."""
    home = place / "home"
    home.mkdir()
    os.chown(home, USER, GROUP)
    return home


@pytest.fixture
def known(tmp_path: Path) -> list[str]:
    """Before a command: the machine has such a user."""
    within = [*CONFINE]
    for name, content in (("passwd", PASSWD), ("group", GROUPS)):
        (tmp_path / name).write_text(content)
        within += ["--bind", f"/etc/{name}={tmp_path / name}"]
    return within


def test_with_sudo_itself(home: Path, known: list[str], place: Path) -> None:
    for name, mode, content in (
        ("shadow", 0o640, "root:*:19000:0:99999:7:::\ntester:*:19000:0:99999:7:::\n"),
        ("sudoers", 0o440, "tester ALL=(ALL:ALL) NOPASSWD: ALL\n"),
    ):
        (place / name).write_text(content)
        (place / name).chmod(mode)
        known += ["--bind", f"/etc/{name}={place / name}"]
    within = [*known, "--uid", str(USER), "sudo", "-n"]
    done = run(
        "record", "-o", home / "r", "--", "sh", "-c", "id -un; id -Gn; echo $HOME; exit 3", within=within, cwd="/"
    )
    assert done.code == 3, done
    name, groups, directory = done.out.splitlines()
    assert (name, directory) == ("tester", "/home/tester")
    assert "extra" in groups.split()
    assert (home / "r").stat().st_uid == USER
    assert report(home / "r")["complete"]


def sudo(*arguments: Argument, within: Sequence[str] = (), **environment: str) -> Done:
    return run(*arguments, within=within, env={**os.environ, **SUDO, **environment}, cwd="/")


def test_the_command_runs_as_the_user_with_its_groups_and_no_capability(home: Path, known: list[str]) -> None:
    script = "id -u; id -g; id -G; grep -E '^(Uid|Gid|Groups|Cap(Prm|Eff|Amb|Inh))' /proc/self/status; env"
    done = sudo(
        "record", "-o", home / "r", "--", "sh", "-c", script, within=known, HOME="/root", USER="root", LOGNAME="root"
    )
    assert done.code == 0, done
    uid, gid, groups, *lines = done.out.splitlines()
    assert (uid, gid) == (str(USER), str(GROUP))
    assert set(groups.split()) == {str(GROUP), str(EXTRA)}
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    # Real, effective, saved and for files: there is no way back.
    assert status["Uid"].split() == [str(USER)] * 4
    assert status["Gid"].split() == [str(GROUP)] * 4
    assert {int(status[f"Cap{kind}"], 16) for kind in ("Prm", "Eff", "Amb", "Inh")} == {0}
    environment = dict(line.split("=", 1) for line in lines if "=" in line)
    assert (environment["HOME"], environment["USER"]) == ("/home/tester", "tester")
    assert (environment["LOGNAME"], environment["SHELL"]) == ("tester", "/bin/tester-shell")
    assert report(home / "r")["complete"]


def test_files_are_the_users(home: Path, known: list[str]) -> None:
    assert sudo("record", "-o", home / "r", "--json", home / "j", "--", "true", within=known).code == 0
    for name in ("r", "j"):
        state = (home / name).stat()
        assert (state.st_uid, state.st_gid) == (USER, GROUP)
    assert json.loads((home / "j").read_bytes())["complete"]


def test_a_directory_of_root_is_no_place(home: Path, place: Path) -> None:
    theirs = place / "theirs"
    theirs.mkdir(mode=0o755)
    (theirs / "old").write_bytes(b"old")
    attempts: list[list[Argument]] = [
        ["-o", theirs / "r"],
        ["-f", "-o", theirs / "old"],
        ["-o", home / "r", "--json", theirs / "j"],
    ]
    for options in attempts:
        done = sudo("record", *options, "--", "true")
        fails(done, 125, r"cannot write .*/theirs/\w+: permission denied", "name another place")
    assert [path.name for path in theirs.iterdir()] == ["old"]
    assert (theirs / "old").read_bytes() == b"old"
    assert not list(home.iterdir())


def test_a_link_to_what_only_root_may_write_is_not_followed(home: Path, place: Path) -> None:
    precious = place / "precious"
    precious.write_bytes(b"old")
    (home / "link").symlink_to(precious)
    (home / "hard").hardlink_to(precious)
    for name in ("link", "hard"):
        sudo("record", "-f", "-o", home / name, "--", "true")
        sudo("record", "-f", "-o", home / "r", "--json", home / name, "--", "true")
    assert precious.read_bytes() == b"old"
    assert precious.stat().st_uid == 0


def test_a_directory_behind_a_link_is_entered_with_the_users_rights(home: Path, place: Path) -> None:
    secret = place / "secret"
    secret.mkdir(mode=0o700)
    (home / "way").symlink_to(secret)
    fails(sudo("record", "-o", home / "way" / "r", "--", "true"), 125, "permission denied", "name another place")
    assert not list(secret.iterdir())


def test_programs_that_only_root_may_run_are_not_run(home: Path) -> None:
    program = home / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    fails(sudo("record", "-o", home / "r", "--", program), 126, "cannot run .*/program: permission denied", ".+")
    assert [path.name for path in home.iterdir()] == ["program"]


def test_a_user_without_a_name(home: Path) -> None:
    done = sudo("record", "-o", home / "r", "--", "sh", "-c", "id -u; id -g; id -G; echo $HOME", HOME="/before")
    assert done.out.split() == [str(USER), str(GROUP), str(GROUP), "/before"]


def test_signals_reach_a_command_of_another_user(home: Path) -> None:
    script = "trap 'exit 9' TERM; kill -TERM $PPID 2>/dev/null || echo may not; sleep 60 & wait"
    # The user may not signal root's memtrack; root may.
    process = subprocess.Popen(
        [*MEMTRACK, "record", "-o", home / "r", "--", "sh", "-c", script],
        env={**os.environ, **SUDO}, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with process:
        assert process.stdout
        assert process.stdout.readline() == b"may not\n"
        process.terminate()
        process.stdout.close()
    assert process.returncode == 9
    assert report(home / "r")["complete"]


def test_a_recorder_inside_has_no_rights_left(home: Path) -> None:
    inner: list[Argument] = [sys.executable, "-I", "-m", "memtrack", "record", "-o", home / "inner", "--", "true"]
    done = sudo("record", "-o", home / "outer", "--", *inner)
    # 125 if the interpreter is where the user may go; what an interpreter out of reach gives otherwise.
    assert done.code in (125, 126)
    assert not (home / "inner").exists()
    if done.code == 125:
        assert done.err.startswith("memtrack: cannot load BPF object: operation not permitted (")


def test_acting_as_the_user_is_one_threads_matter() -> None:
    # Another thread reads the BPF maps meanwhile, for which it needs root's capabilities.
    code = f"""
import threading
from pathlib import Path
from memtrack.invoker import Invoker
from memtrack.output import _rights_of
started, done = threading.Event(), threading.Event()
thread = threading.Thread(target=lambda: (started.set(), done.wait()))
thread.start()
started.wait()
def state(tid):
    lines = Path(f"/proc/self/task/{{tid}}/status").read_text().splitlines()
    return [line for line in lines if line.startswith(("Uid:", "Gid:", "Cap"))]
before = state(thread.native_id), state(threading.get_native_id())
with _rights_of(Invoker({USER}, {GROUP}, ({GROUP},), is_self=False)):
    assert state(thread.native_id) == before[0]
    assert state(threading.get_native_id())[0] == "Uid:\\t0\\t0\\t0\\t{USER}"
assert (state(thread.native_id), state(threading.get_native_id())) == before
done.set()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_root_that_may_not_act_as_the_user_does_not_act_as_root(home: Path) -> None:
    for capability in ("setuid", "setgid"):
        done = sudo("record", "-o", home / "r", "--", "true", within=[*CONFINE, "--drop", capability])
        fails(done, 125, "cannot write .*/r: operation not permitted", "name another place")
    assert not list(home.iterdir())


@pytest.mark.parametrize(
    ("variable", "value"),
    [("SUDO_UID", "root"), ("SUDO_UID", "-1"), ("SUDO_UID", "4294967295"), ("SUDO_GID", ""), ("SUDO_GID", "1e3")],
)
def test_what_sudo_never_writes_is_refused(variable: str, value: str, home: Path) -> None:
    done = sudo("record", "-o", home / "r", "--", "touch", "/ran", **{variable: value})
    fails(done, 125, f"{variable} is '{value}', not a number that sudo sets", "unset SUDO_UID and SUDO_GID")
    assert not list(home.iterdir())


def test_root_by_sudo_is_root(home: Path) -> None:
    done = sudo("record", "-o", home / "r", "--", "id", "-u", SUDO_UID="0", SUDO_GID="0")
    assert (done.out, (home / "r").stat().st_uid) == ("0\n", 0)


def test_the_library_leaves_that_to_its_caller() -> None:
    code = "import memtrack; memtrack.record(['id', '-u'])"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **SUDO}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "0\n"
