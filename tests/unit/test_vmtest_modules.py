"""Kernel modules for guests: what a module needs, and in which order modprobe is told to load."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from tests.vmtest import modules


def module(depends: str) -> bytes:
    return b"\x7fELF...\0license=GPL\0depends=" + depends.encode() + b"\0retpoline=Y\0"


def write(root: Path, **depends: str) -> dict[str, Path]:
    for name, needs in depends.items():
        path = root / "kernel" / f"{name}.ko"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(module(needs))
    return modules.find_modules(root)


@pytest.mark.parametrize(
    ("path", "name"),
    [("kernel/lib/lz4/lz4_compress.ko", "lz4_compress"), ("virtio-blk.ko.xz", "virtio_blk"), ("a/ext4.ko.zst", "ext4")],
)
def test_module_name(path: str, name: str) -> None:
    assert modules.module_name(path) == name


@pytest.mark.parametrize(
    ("depends", "names"), [("", ()), ("zsmalloc", ("zsmalloc",)), ("jbd2,crc-16", ("jbd2", "crc_16"))]
)
def test_dependencies(depends: str, names: tuple[str, ...]) -> None:
    assert modules.dependencies(module(depends)) == names


def test_a_file_that_is_no_module_needs_nothing() -> None:
    assert modules.dependencies(b"\x7fELF") == ()


def test_packed_modules_are_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "zram.ko.xz"
    path.write_bytes(lzma.compress(module("zsmalloc")))
    assert modules.dependencies(modules.read_module(path)) == ("zsmalloc",)


def test_closure_takes_what_is_needed_and_no_more(tmp_path: Path) -> None:
    # crc32c is not there: it is built into this kernel, which modinfo does not tell.
    available = write(tmp_path, ext4="jbd2,mbcache,crc32c", jbd2="", mbcache="", loop="")
    found = modules.closure(["ext4", "zram"], available)
    assert {name: needs for name, (_, needs) in found.items()} == {
        "ext4": ("jbd2", "mbcache"),
        "jbd2": (),
        "mbcache": (),
    }


def test_dep_file_names_the_deepest_last(tmp_path: Path) -> None:
    # modprobe loads a line from its end: d must be there before c, which b and a need.
    available = write(tmp_path, a="c,b", b="c", c="d", d="")
    found = modules.closure(["a"], available)
    assert modules.dep_file(found).splitlines() == ["a.ko: b.ko c.ko d.ko", "b.ko: c.ko d.ko", "c.ko: d.ko", "d.ko:"]
