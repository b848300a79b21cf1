"""What a guest boots from, and the command that it is given."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.vmtest import initramfs


def test_the_key_changes_with_any_file(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    single, inside = tmp_path / "python3", tmp_path / "tree" / "x.py"
    single.touch()
    inside.touch()

    def key() -> str:
        return initramfs.listing_key([single, inside])

    before = key()
    assert key() == before
    inside.write_text("x")
    changed = key()
    assert changed != before
    os.utime(single, (1, 1))
    assert key() != changed


@pytest.mark.parametrize("command", [["echo", "a b", "$HOME", "it's", "line\nbreak"], ["printf", "%s", "\udcff"]])
def test_the_command_arrives_as_it_was_given(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(initramfs, "CHECKOUT", tmp_path)
    script = initramfs.command_script(command, {"VARIABLE": "of 'two' words"})
    assert shlex.split(script.splitlines()[0]) == ["export", "VARIABLE=of 'two' words"]
    ran = subprocess.run(["sh", "-c", script], capture_output=True, check=True)
    direct = subprocess.run(command, capture_output=True, check=True)
    assert ran.stdout == direct.stdout


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(_: object) -> None:
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        initramfs.write_whole(tmp_path / "base.cpio", fail)
    assert list(tmp_path.iterdir()) == []


def test_archives_of_the_past_are_forgotten_and_young_ones_kept(tmp_path: Path) -> None:
    old, young = tmp_path / "base-1.cpio", tmp_path / "base-2.cpio"
    old.touch()
    young.touch()
    os.utime(old, (1, 1))
    initramfs.forget(tmp_path.glob("base-*.cpio"))
    assert list(tmp_path.iterdir()) == [young]


def test_an_archive_is_written_once_for_a_key(tmp_path: Path) -> None:
    def write(stream: BinaryIO) -> None:
        stream.write(b"whole")

    def never(_: BinaryIO) -> None:
        raise AssertionError("written again")

    first = initramfs.cached(tmp_path, "base", "1", write)
    assert first.read_bytes() == b"whole"
    assert initramfs.cached(tmp_path, "base", "1", never) == first
    assert initramfs.cached(tmp_path, "base", "2", write) != first


def test_what_is_built_for_another_machine_takes_the_place_of_the_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "python" / "memtrack"
    package.mkdir(parents=True)
    (package / "_native.abi3.so").write_text("the host's own")
    (package / "cli.py").write_text("sources of any machine")
    (tmp_path / "foreign.so").write_text("the guest's own")
    monkeypatch.setattr(initramfs, "CHECKOUT", tmp_path)
    setup = initramfs.Setup(tmp_path, {}, {package / "_native.abi3.so": tmp_path / "foreign.so"}, native=False)
    stream = io.BytesIO()
    initramfs.write_run(stream, setup, ["true"], {}, [])
    content = stream.getvalue()
    assert b"the guest's own" in content
    assert b"sources of any machine" in content
    assert b"the host's own" not in content
