"""The base for guests of the host's own architecture: the interpreter and packages that run this, as they are."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

from tests.vmtest.cpio import Archive
from tests.vmtest.initramfs import Setup, begin_base, cached, listing_key
from tests.vmtest.tree import Tree, applets, files_below, linked_libraries, static_busybox

# Parts of the standard library that no test needs and that are two thirds of it.
STDLIB_LEFT_OUT = (
    *("test", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "pydoc_data"),
    *("site-packages", "dist-packages"),
)
# Tools for developing, tens of MiB each, that work on the host only.
DISTRIBUTIONS_LEFT_OUT = (
    *(
        "mypy",
        "mypy-extensions",
        "librt",
        "ast-serialize",
        "ruff",
        "clang-format",
        "pip",
        "setuptools",
        "wheel",
        "build",
    ),
)
# Programs of the host that help in looking at a guest, or are recorded there; left out where the host lacks them.
HOST_PROGRAMS = ("bpftool", "strace", "git", "redis-server", "redis-cli")
# glibc loads it by name when a thread is cancelled, so no ELF file lists it.
LOADED_BY_NAME = ("libgcc_s.so.1",)
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

Part = tuple[Path, frozenset[Path]]


def setup(cache: Path) -> Setup:
    """The base for this set-up, from the cache if nothing in it changed."""
    files, trees = parts()
    everything = [*files, *(path for top, left_out in trees for path in files_below(top, left_out))]
    base = cached(cache, "base", listing_key(everything), lambda stream: write_base(stream, files, trees))
    return Setup(base, {"PATH": guest_path()})


def guest_path() -> str:
    """PATH in the guest: this interpreter's scripts first, as in an activated virtual environment."""
    return f"{Path(sys.executable).parent}:{SYSTEM_PATH}"


def parts() -> tuple[list[Path], list[Part]]:
    """What the base is made of: single files, and trees with what to leave out of each."""
    paths = sysconfig.get_paths()
    # Those of the interpreter below a virtual environment.
    below = sysconfig.get_paths(vars={"base": sys.base_prefix, "platbase": sys.base_exec_prefix})
    files = [Path(sys.executable), Path(sys.prefix, "pyvenv.cfg"), Path("/etc/ld.so.cache"), Path("/etc/ld.so.conf")]
    files += sorted(Path(sys.executable).parent.glob("python*"))
    files += [Path(found) for name in HOST_PROGRAMS if (found := shutil.which(name, path=SYSTEM_PATH))]
    packages = {Path(paths["purelib"]), Path(paths["platlib"])}
    trees = [
        (top, stdlib_left_out(top) | packages) for top in sorted({Path(below["stdlib"]), Path(below["platstdlib"])})
    ]
    trees += [(top, files_of(DISTRIBUTIONS_LEFT_OUT)) for top in sorted(packages)]
    return [path for path in files if path.exists()], trees


def stdlib_left_out(top: Path) -> frozenset[Path]:
    named = {top / name for name in STDLIB_LEFT_OUT}
    # The parts for building and embedding Python; and Tk's module, which alone brings in all of X.
    return frozenset(named | {*top.glob("config-*"), *top.glob("lib-dynload/_tkinter*")})


def files_of(distributions: Iterable[str]) -> frozenset[Path]:
    """All files of the installed distributions of these names."""
    found: set[Path] = set()
    for name in distributions:
        try:
            files = importlib.metadata.distribution(name).files or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found.update(Path(os.path.normpath(str(file.locate()))) for file in files)
    return frozenset(found)


def write_base(stream: BinaryIO, files: Iterable[Path], trees: Sequence[Part]) -> None:
    archive = Archive(stream)
    tree = Tree(archive)
    begin_base(tree)
    for path in files:
        tree.add(path)
    for top, left_out in trees:
        tree.add_below(top, left_out)
    tree.add_libraries()
    folders = {library.parent for library in linked_libraries([Path(sys.executable).resolve()])}
    for path in (folder / name for folder in sorted(folders) for name in LOADED_BY_NAME):
        if path.exists():
            tree.add(path)
    busybox = static_busybox()
    tree.add_busybox(busybox, applets(busybox))
    archive.finish()
