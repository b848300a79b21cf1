"""What is put into a guest's root, and under which names."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.vmtest import initramfs
from tests.vmtest.cpio import Archive

LDD = """/usr/bin/python3.11:
	linux-vdso.so.1 (0x00007ffd4a5f2000)
	libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f0c1c8a0000)
	libpython3.11.so.1.0 => /opt/py/lib/libpython3.11.so.1.0 (0x00007f0c1c000000)
	libgone.so => not found
	/lib64/ld-linux-x86-64.so.2 (0x00007f0c1c9a0000)
/usr/lib/x.so:
	libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f9a00000000)
/bin/busybox:
	not a dynamic executable
"""


class Recorder(Archive):
    """Remembers entries as `name type target-or-content`."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())
        self.entries: list[tuple[str, str, str]] = []

    def directory(self, name: str, mode: int = 0o755) -> None:
        super().directory(name, mode)
        self.entries.append((name, "directory", ""))

    def symlink(self, name: str, target: str) -> None:
        super().symlink(name, target)
        self.entries.append((name, "symlink", target))

    def file(self, name: str, content: bytes, mode: int = 0o644, mtime_s: int = 0) -> None:
        super().file(name, content, mode, mtime_s)
        self.entries.append((name, "file", content.decode(errors="replace")))

    def below(self, root: Path) -> list[tuple[str, str, str]]:
        prefix = f"{str(root)[1:]}/"
        return [(name[len(prefix) :], kind, rest) for name, kind, rest in self.entries if name.startswith(prefix)]


def added(root: Path, *paths: str) -> list[tuple[str, str, str]]:
    archive = Recorder()
    tree = initramfs.Tree(archive)
    for path in paths:
        tree.add(root / path)
    return archive.below(root)


def test_directories_come_before_what_they_hold(tmp_path: Path) -> None:
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/x").write_text("x")
    assert added(tmp_path, "usr/lib/x", "usr/lib/x") == [
        ("usr", "directory", ""),
        ("usr/lib", "directory", ""),
        ("usr/lib/x", "file", "x"),
    ]


def test_links_come_with_what_they_point_to(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3.11").write_text("elf")
    (tmp_path / "bin/python3").symlink_to("python3.11")
    (tmp_path / "python").symlink_to(tmp_path / "bin/python3")
    assert added(tmp_path, "python") == [
        ("python", "symlink", str(tmp_path / "bin/python3")),
        ("bin", "directory", ""),
        ("bin/python3", "symlink", "python3.11"),
        ("bin/python3.11", "file", "elf"),
    ]


def test_a_file_below_a_linked_directory_stands_where_the_link_leads(tmp_path: Path) -> None:
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/x").write_text("x")
    (tmp_path / "lib").symlink_to("usr/lib")
    assert added(tmp_path, "lib/x") == [
        ("lib", "symlink", "usr/lib"),
        ("usr", "directory", ""),
        ("usr/lib", "directory", ""),
        ("usr/lib/x", "file", "x"),
    ]


def test_a_dangling_link_is_kept(tmp_path: Path) -> None:
    (tmp_path / "gone").symlink_to("nowhere")
    assert added(tmp_path, "gone") == [("gone", "symlink", "nowhere")]


def test_files_below_leave_out_caches_of_tools_and_of_other_modes(tmp_path: Path) -> None:
    for name in (
        "a.py",
        "__pycache__/a.cpython-311.pyc",
        "__pycache__/a.cpython-311.opt-2.pyc",
        ".cache/x",
        "no/y",
        "z/1",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to("z")
    found = initramfs.files_below(tmp_path, {tmp_path / "no"})
    assert [str(path.relative_to(tmp_path)) for path in found] == [
        "a.py",
        "link",
        "__pycache__/a.cpython-311.pyc",
        "z/1",
    ]


def test_parse_ldd() -> None:
    assert initramfs.parse_ldd(LDD) == [
        Path("/lib/x86_64-linux-gnu/libm.so.6"),
        Path("/opt/py/lib/libpython3.11.so.1.0"),
        Path("/lib64/ld-linux-x86-64.so.2"),
    ]
    assert initramfs.linked_libraries([]) == []


def test_the_key_changes_with_any_file(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    single, inside = tmp_path / "python3", tmp_path / "tree" / "x.py"
    single.touch()
    inside.touch()

    def key() -> str:
        return initramfs.base_key([single], [(tmp_path / "tree", set())])

    before = key()
    assert key() == before
    inside.write_text("x")
    changed = key()
    assert changed != before
    os.utime(single, (1, 1))
    assert key() != changed


def test_distributions_of_tools_are_left_out() -> None:
    files = initramfs.left_out_files(["pytest", "there-is-no-such-distribution"])
    assert any(path.name == "__main__.py" and path.parent.name == "pytest" for path in files)


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
