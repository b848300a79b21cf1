"""How files become entries of an archive: under which names, and with what they need."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from tests.vmtest import tree
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
    into = tree.Tree(archive)
    for path in paths:
        into.add(root / path)
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
    found = tree.files_below(tmp_path, {tmp_path / "no"})
    assert [str(path.relative_to(tmp_path)) for path in found] == [
        "a.py",
        "link",
        "__pycache__/a.cpython-311.pyc",
        "z/1",
    ]


def test_parse_ldd() -> None:
    assert tree.parse_ldd(LDD) == [
        Path("/lib/x86_64-linux-gnu/libm.so.6"),
        Path("/opt/py/lib/libpython3.11.so.1.0"),
        Path("/lib64/ld-linux-x86-64.so.2"),
    ]
    assert tree.linked_libraries([]) == []


def test_another_root_is_not_seen_in_the_guest(tmp_path: Path) -> None:
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/libz.so.1.2").write_text("z")
    (tmp_path / "usr/lib/libz.so.1").symlink_to("libz.so.1.2")
    (tmp_path / "lib").symlink_to("usr/lib")
    (tmp_path / "usr/bin").mkdir()
    (tmp_path / "usr/bin/cc").symlink_to("/etc/alternatives/cc")
    archive = Recorder()
    into = tree.Tree(archive, tmp_path)
    into.add(Path("/lib/libz.so.1"))
    into.add_below(Path("/usr/bin"))
    assert archive.entries == [
        ("lib", "symlink", "usr/lib"),
        ("usr", "directory", ""),
        ("usr/lib", "directory", ""),
        ("usr/lib/libz.so.1", "symlink", "libz.so.1.2"),
        ("usr/lib/libz.so.1.2", "file", "z"),
        ("usr/bin", "directory", ""),
        ("usr/bin/cc", "symlink", "/etc/alternatives/cc"),
    ]


def test_what_is_there_already_stays() -> None:
    archive = Recorder()
    into = tree.Tree(archive, Path("/there/is/nothing"))
    into.file(Path("/bin/sh"), b"mine")
    into.symlink(Path("/bin/sh"), "/bin/busybox")
    into.symlink(Path("/bin/ls"), "/bin/busybox")
    assert archive.entries[1:] == [("bin/sh", "file", "mine"), ("bin/ls", "symlink", "/bin/busybox")]


def test_libraries_of_programs_are_found() -> None:
    """The interpreter that runs this is linked with a C library, by way of a loader."""
    names = [library.name for library in tree.linked_libraries([Path(sys.executable).resolve()])]
    assert any(name.startswith("libc.") for name in names)
    assert any(name.startswith("ld-") for name in names)
