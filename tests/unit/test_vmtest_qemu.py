"""How guests are started and ended, with stand-ins for QEMU."""

from __future__ import annotations

import os
import shlex
import threading
import time
from pathlib import Path

import pytest

from tests.vmtest import qemu
from tests.vmtest.matrix import MatrixError
from tests.vmtest.qemu import Guest


def guest(folder: Path, **changes: object) -> Guest:
    return Guest("amd64", folder / "vmlinuz", folder / "initrd", folder / "console.log", **changes)  # type: ignore[arg-type]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder first on PATH, for a script named as QEMU is; no discs are made."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(qemu, "format_discs", lambda _: [])
    return tmp_path


def write_stand_in(folder: Path, script: str) -> None:
    """The script finds the channels' descriptors in $stdout, $stderr, $status and $results."""
    program = folder / "qemu-system-x86_64"
    loop = (
        'for word; do case "$word" in file,id=*) name=${word#file,id=}; eval "${name%%,*}=${word##*path=}";; esac; done'
    )
    program.write_text(f"#!/bin/sh\n{loop}\n{script}\n")
    program.chmod(0o755)


def run(guest: Guest, timeout_s: float = 20) -> tuple[qemu.Outcome, bytes, bytes]:
    out, err = bytearray(), bytearray()
    outcome = guest.run(out.extend, err.extend, timeout_s)
    return outcome, bytes(out), bytes(err)


def test_output_status_and_results_come_back(stand_in: Path) -> None:
    write_stand_in(stand_in, "printf out >$stdout; printf err >$stderr; printf tar >$results; echo 7 >$status")
    outcome, out, err = run(guest(stand_in))
    assert (out, err, outcome.status, outcome.results) == (b"out", b"err", 7, b"tar")
    assert not outcome.timed_out


@pytest.mark.parametrize("said", ["", "echo 'Kernel panic' >$status"])
def test_a_guest_that_tells_no_status_has_none(stand_in: Path, said: str) -> None:
    write_stand_in(stand_in, said)
    assert run(guest(stand_in))[0].status is None


def test_qemus_own_failure_is_told_in_its_words(stand_in: Path) -> None:
    write_stand_in(stand_in, "echo 'no such machine' >&2; exit 1")
    with pytest.raises(MatrixError, match="QEMU ended with 1: no such machine"):
        run(guest(stand_in))


def test_a_guest_out_of_time_is_ended_with_all_that_it_started(stand_in: Path) -> None:
    write_stand_in(stand_in, f"sleep 300 & echo $! >{shlex.quote(str(stand_in))}/pid; printf early >$stdout; wait")
    outcome, out, _ = run(guest(stand_in), timeout_s=1)
    assert outcome.timed_out
    assert outcome.status is None
    assert out == b"early"
    pid = int((stand_in / "pid").read_text())
    for _ in range(100):
        if not running(pid):
            break
        time.sleep(0.05)
    assert not running(pid)


def test_guests_of_other_threads_can_be_ended(stand_in: Path) -> None:
    write_stand_in(stand_in, "printf up >$stdout; exec sleep 300")
    up = threading.Event()
    ended: list[str] = []

    def work() -> None:
        try:
            guest(stand_in).run(lambda _: up.set(), lambda _: None, 300)
        except MatrixError as error:
            ended.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    assert up.wait(20)
    qemu.end_all()
    thread.join(20)
    assert not thread.is_alive()
    assert ended == ["QEMU ended with -9: "]


def running(pid: int) -> bool:
    """A process that nobody has waited for yet has ended all the same."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def command_line(guest: Guest) -> list[str]:
    command = guest.command({"stdout": 5}, [Path("/d")])
    return command[3:] if command[0] == "setpriv" else command


def test_places_for_more_processors(tmp_path: Path) -> None:
    command = command_line(guest(tmp_path, possible_processors=255))
    assert command[command.index("-smp") + 1] == "2,maxcpus=255,sockets=255,cores=1,threads=1"
    assert command[len(command) - 1 - command[::-1].index("-cpu") + 1].startswith("Haswell-v4,-cx16,")


def test_the_command_line(tmp_path: Path) -> None:
    command = command_line(guest(tmp_path, boot="maxcpus=2", memory_mib=1024))
    assert command[0] == "qemu-system-x86_64"
    assert command[command.index("-smp") + 1] == "2"
    assert command[command.index("-m") + 1] == "1024"
    words = command[command.index("-append") + 1].split()
    assert {"console=ttyS0", "rootfstype=ramfs", "panic=-1", "maxcpus=2"} <= set(words)
    assert "file,id=stdout,path=/dev/fd/5" in command
    assert "virtserialport,chardev=stdout,name=stdout" in command
    assert "-no-reboot" in command
    assert "-icount" not in command
    counting = command_line(guest(tmp_path, count_instructions=True))
    assert counting[counting.index("-icount") + 1].startswith("shift=0")
    assert "maxcpus=1" in counting[counting.index("-append") + 1].split()


def test_a_missing_qemu_is_named_with_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(qemu, "format_discs", lambda _: [])
    with pytest.raises(MatrixError, match=r"qemu-system-x86_64 is not there \(install qemu-system-x86"):
        run(guest(tmp_path))
