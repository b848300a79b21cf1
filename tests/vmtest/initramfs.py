"""What a guest's root holds: the Python that runs this, the checkout, busybox, an init; kernel modules apart.

Three archives in one file, each built as seldom as it can be: the base (interpreter, libraries, site-packages; once per
set-up), the kernel's modules (once per kernel), the checkout with the command to run (every time).

Everything keeps the path it has on the host, so that a virtual environment, an editable install, and paths that were
built into a program mean the same in the guest.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from tests.vmtest import modules as kernel_modules
from tests.vmtest.cpio import Archive
from tests.vmtest.matrix import MatrixError

CHECKOUT = Path(__file__).resolve().parents[2]
# What of the checkout goes along: sources, built extension, BPF object and tests.
CHECKOUT_PARTS = ("pyproject.toml", "python", "tests", "bpf", "build/workloads")
# Parts of the standard library that no test needs and that are two thirds of it.
STDLIB_LEFT_OUT = {
    "test",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "pydoc_data",
    "site-packages",
    "dist-packages",
}
# Tools for developing, tens of MiB each, that work on the host only.
DISTRIBUTIONS_LEFT_OUT = {
    "mypy",
    "mypy-extensions",
    "ruff",
    "clang-format",
    "pip",
    "setuptools",
    "wheel",
    "build",
    "librt",
    "ast-serialize",
}
# Programs of the host that help in looking at a guest; left out where the host lacks them.
HOST_PROGRAMS = ("bpftool", "strace")
# glibc loads it by name when a thread is cancelled, so no ELF file lists it.
LOADED_BY_NAME = ("libgcc_s.so.1",)
# An archive of another set-up is kept this long: checkouts and virtual environments may share the cache.
ARCHIVE_LIFE_S = 24 * 3600
DIRECTORIES = (
    "dev",
    "proc",
    "sys",
    "run",
    "run/vmtest",
    "tmp",
    "root",
    "results",
    "mnt",
    "mnt/ext4",
    "etc",
    "home/tester",
    "var/tmp",
)
ETC = {
    "etc/passwd": "root:x:0:0::/root:/bin/sh\ntester:x:1000:1000::/home/tester:/bin/sh\n",
    "etc/group": "root:x:0:\ntester:x:1000:\n",
    "etc/hosts": "127.0.0.1 localhost vmtest\n",
}


class Tree:
    """Adds host files to an archive under their own paths, with the symlinks that lead to them."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.elf_files: list[Path] = []

    def add(self, path: Path) -> None:
        """Add a file, a symlink with what it points to, or a directory without what it holds; once each."""
        place = self.directory(path.parent) / path.name
        if name_of(place) in self.archive:
            return
        if place.is_symlink():
            self.archive.symlink(name_of(place), str(place.readlink()))
            if place.exists():
                self.add(target_of(place))
        elif place.is_dir():
            self.directory(place)
        else:
            state = place.stat()
            self.file(place, place.read_bytes(), state.st_mode & 0o7777, int(state.st_mtime))

    def add_below(self, top: Path, left_out: frozenset[Path] | set[Path] = frozenset()) -> None:
        """Add everything under `top` but caches of other interpreters' byte code and what `left_out` names."""
        for path in files_below(top, left_out):
            self.add(path)

    def file(self, path: Path, content: bytes, mode: int = 0o644, mtime_s: int = 0) -> None:
        """Add a file with this content, whatever the host has at its path."""
        place = self.directory(path.parent) / path.name
        self.archive.file(name_of(place), content, mode, mtime_s)
        if content[:4] == b"\x7fELF":
            self.elf_files.append(place)

    def directory(self, path: Path, mode: int = 0o755) -> Path:
        """`path` with all symlinks in it followed, and those and all its directories added.

        All can be entered by everyone, whatever they are on the host: programs in the guest also run as other users.
        """
        if path == Path("/"):
            return path
        place = self.directory(path.parent) / path.name
        if place.is_symlink():
            if name_of(place) not in self.archive:
                self.archive.symlink(name_of(place), str(place.readlink()))
            return self.directory(target_of(place))
        if name_of(place) not in self.archive:
            self.archive.directory(name_of(place), mode)
        return place

    def add_libraries(self) -> None:
        """Add every shared library that the ELF files added so far are linked with."""
        for library in linked_libraries(self.elf_files):
            self.add(library)


def name_of(place: Path) -> str:
    """A path as archives name it: without the leading slash."""
    return str(place).lstrip("/")


def target_of(link: Path) -> Path:
    """What a symlink points to, one step on: that may be a symlink again."""
    return Path(os.path.normpath(link.parent / link.readlink()))


def files_below(top: Path, left_out: frozenset[Path] | set[Path] = frozenset()) -> Iterator[Path]:
    """Files and symlinks under `top`, in a fixed order; not in hidden folders, which are tools' caches."""
    for folder, directories, files in os.walk(top):
        here = Path(folder)
        directories[:] = sorted(d for d in directories if here / d not in left_out and not d.startswith("."))
        links = [d for d in directories if (here / d).is_symlink()]
        for name in sorted(files + links):
            # .opt-1 and .opt-2 are byte code for python -O and -OO.
            if here / name not in left_out and ".opt-" not in name:
                yield here / name


def linked_libraries(elf_files: Sequence[Path]) -> list[Path]:
    """Paths of the shared libraries, and the loader, that ldd reports for these files."""
    if not elf_files:
        return []
    # ldd wants a slash in a name, ends with 1 if any file is static, and says so on stdout.
    result = subprocess.run(["ldd", *map(str, elf_files)], capture_output=True, text=True)
    return parse_ldd(result.stdout)


def parse_ldd(output: str) -> list[Path]:
    """Library paths in ldd's output: `name => /path (address)`, or `/path (address)` for the loader."""
    paths = re.findall(r"^\s+(?:\S+ => )?(/\S+) \(0x", output, re.MULTILINE)
    return [Path(path) for path in dict.fromkeys(paths)]


def left_out_files(names: Iterable[str]) -> set[Path]:
    """All files of the installed distributions of these names."""
    found: set[Path] = set()
    for name in names:
        try:
            files = importlib.metadata.distribution(name).files or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found.update(Path(os.path.normpath(str(file.locate()))) for file in files)
    return found


def base_parts() -> tuple[list[Path], list[tuple[Path, set[Path]]]]:
    """What the base is made of: single files, and trees with what to leave out of each."""
    paths = sysconfig.get_paths()
    # The paths of the interpreter below a virtual environment.
    below = sysconfig.get_paths(vars={"base": sys.base_prefix, "platbase": sys.base_exec_prefix})
    files = [Path(sys.executable), Path(sys.prefix, "pyvenv.cfg"), Path("/etc/ld.so.cache"), Path("/etc/ld.so.conf")]
    scripts = Path(sys.executable).parent
    files += sorted(scripts.glob("python*"))
    libraries = {Path(below["stdlib"]), Path(below["platstdlib"])}
    packages = {Path(paths["purelib"]), Path(paths["platlib"])}
    developing = left_out_files(DISTRIBUTIONS_LEFT_OUT)
    trees = []
    for library in sorted(libraries):
        left_out = {library / name for name in STDLIB_LEFT_OUT} | set(library.glob("config-*")) | packages
        left_out |= set(library.glob("lib-dynload/_tkinter*"))  # alone brings in all of X
        trees.append((library, left_out))
    trees += [(tree, developing) for tree in sorted(packages)]
    programs = [
        Path(found) for name in HOST_PROGRAMS if (found := shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin"))
    ]
    return [path for path in files + programs if path.exists()], trees


def base_key(files: Iterable[Path], trees: Iterable[tuple[Path, set[Path]]]) -> str:
    """Changes whenever a file of the base, or the way it is put together, does."""
    digest = hashlib.sha256(Path(__file__).read_bytes() + Path(__file__).with_name("cpio.py").read_bytes())
    for path in [*files, *(path for tree, left_out in trees for path in files_below(tree, left_out))]:
        state = path.lstat()
        digest.update(f"{path}|{state.st_size}|{state.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


def base(cache: Path) -> Path:
    """The base archive for this set-up, from the cache if nothing in it changed."""
    files, trees = base_parts()
    target = cache / "initramfs" / f"base-{base_key(files, trees)}.cpio"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        forget(target.parent.glob("base-*.cpio"))
        write_whole(target, lambda stream: write_base(stream, files, trees))
    return target


def write_base(stream: BinaryIO, files: Iterable[Path], trees: Iterable[tuple[Path, set[Path]]]) -> None:
    archive = Archive(stream)
    tree = Tree(archive)
    for directory in DIRECTORIES:
        tree.directory(Path("/", directory), 0o1777 if directory.endswith("tmp") else 0o755)
    archive.character_device("dev/console", 5, 1)
    for name, text in ETC.items():
        archive.file(name, text.encode())
    for path in files:
        tree.add(path)
    for top, left_out in trees:
        tree.add_below(top, left_out)
    tree.add_libraries()
    loaders = {library.parent for library in linked_libraries([Path(sys.executable).resolve()])}
    for path in (folder / name for folder in sorted(loaders) for name in LOADED_BY_NAME):
        if path.exists():
            tree.add(path)
    add_busybox(tree)
    archive.finish()


def add_busybox(tree: Tree) -> None:
    """busybox, and a symlink for each of its programs that the base does not have already."""
    busybox = shutil.which("busybox", path="/usr/bin:/bin")
    if busybox is None or linked_libraries([Path(busybox)]):
        raise MatrixError("guests need a static busybox (install busybox-static)")
    applets = subprocess.run([busybox, "--list-full"], capture_output=True, text=True, check=True).stdout.split()
    tree.file(Path("/bin/busybox"), Path(busybox).read_bytes(), 0o755)
    for applet in sorted(applets):
        place = tree.directory(Path("/", applet).parent) / Path(applet).name
        if name_of(place) not in tree.archive:
            tree.archive.symlink(name_of(place), "/bin/busybox")


def module_archive(cache: Path, release: str, folder: Path | None) -> Path:
    """The archive of a kernel's modules, from the cache if it is there; empty where the modules cannot be had."""
    digest = hashlib.sha256(Path(kernel_modules.__file__).read_bytes()).hexdigest()[:8]
    target = cache / "initramfs" / f"modules-{release}-{digest}.cpio"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        forget(target.parent.glob(f"modules-{release}-*.cpio"))
        available = kernel_modules.find_modules(folder) if folder else {}
        modules = kernel_modules.closure(kernel_modules.WANTED, available)
        write_whole(target, lambda stream: write_modules(stream, release, modules))
    return target


def write_modules(stream: BinaryIO, release: str, modules: Mapping[str, tuple[bytes, tuple[str, ...]]]) -> None:
    archive = Archive(stream)
    tree = Tree(archive)
    place = Path("/lib/modules", release)
    for name, (content, _) in sorted(modules.items()):
        tree.file(place / f"{name}.ko", content)
    tree.file(place / "modules.dep", kernel_modules.dep_file(modules).encode())
    archive.finish()


def write_run(
    stream: BinaryIO, command: Sequence[str], environment: Mapping[str, str], extra: Iterable[Path] = ()
) -> None:
    """The archive of one run: the checkout, programs and files named for it, the init and the command."""
    archive = Archive(stream)
    tree = Tree(archive)
    for part in CHECKOUT_PARTS:
        path = CHECKOUT / part
        if path.is_dir():
            tree.add_below(path)
        elif path.exists():
            tree.add(path)
    for path in extra:
        if path.is_dir():
            tree.add_below(path)
        else:
            tree.add(path)
    tree.add_libraries()
    tree.file(Path("/init"), Path(__file__).with_name("guest-init.sh").read_bytes(), 0o755)
    tree.file(Path("/run/vmtest/command"), command_script(command, environment).encode("utf-8", "surrogateescape"))
    archive.finish()


def command_script(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """The shell script by which the guest's init runs the command, in the checkout's folder."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    return "\n".join([*lines, f"cd {shlex.quote(str(CHECKOUT))} || exit 125", f"exec {shlex.join(command)}", ""])


def guest_path() -> str:
    """PATH in the guest: this interpreter's scripts first, as in an activated virtual environment."""
    return f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def forget(archives: Iterable[Path]) -> None:
    """Remove archives that were made for set-ups of the past; young ones may be in use by another run."""
    for archive in archives:
        if time.time() - archive.stat().st_mtime > ARCHIVE_LIFE_S:
            archive.unlink(missing_ok=True)


def write_whole(target: Path, write: Callable[[BinaryIO], None]) -> None:
    """Write a file under another name and rename it, so that a cut write is never taken for the whole."""
    partial = target.with_name(f".{target.name}-{os.getpid()}")
    try:
        with partial.open("wb") as stream:
            write(stream)
        partial.rename(target)
    finally:
        partial.unlink(missing_ok=True)
