"""What a guest boots from: three archives in one file, each built as seldom as it can be.

The base (interpreter, libraries, site-packages, busybox) is built once per set-up, by `native` or `foreign`; the
kernel's modules once per kernel; the checkout with the command to run every time.

Everything keeps the path it has on the host, so that a virtual environment, an editable install, and paths that were
built into a program mean the same in the guest.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from tests.vmtest import modules as kernel_modules
from tests.vmtest.cpio import Archive
from tests.vmtest.tree import Tree

CHECKOUT = Path(__file__).resolve().parents[2]
# What of the checkout goes along: sources, built extension, BPF object, tests, and benchmarks that need no compiler.
CHECKOUT_PARTS = ("pyproject.toml", "python", "tests", "bpf", "benchmarks", "build/workloads")
# An archive of another set-up is kept this long, since a run may be about to read it; each has more than 100 MiB.
ARCHIVE_LIFE_S = 15 * 60
DIRECTORIES = (
    *("dev", "proc", "sys", "run", "run/vmtest", "tmp", "var/tmp", "root", "home/tester", "results", "mnt/ext4", "etc"),
)
ETC = {
    "etc/passwd": "root:x:0:0::/root:/bin/sh\ntester:x:1000:1000::/home/tester:/bin/sh\n",
    "etc/group": "root:x:0:\ntester:x:1000:\n",
    "etc/hosts": "127.0.0.1 localhost vmtest\n",
}


@dataclass(frozen=True)
class Setup:
    """A base archive, and what the checkout needs to work on top of it."""

    base: Path
    environment: Mapping[str, str]
    """Variables for the command; PATH leads to the interpreter of the base."""
    replacements: Mapping[Path, Path] = field(default_factory=dict)
    """Files to take in place of the checkout's: what was built for another machine than the host."""
    native: bool = True
    """Whether the guest runs the host's own programs."""


def begin_base(tree: Tree) -> None:
    """Add what every base has, whatever its programs are."""
    for directory in DIRECTORIES:
        tree.directory(Path("/", directory), 0o1777 if directory.endswith("tmp") else 0o755)
    tree.archive.character_device("dev/console", 5, 1)
    for name, text in ETC.items():
        tree.file(Path("/", name), text.encode())


def cached(cache: Path, name: str, key: str, write: Callable[[BinaryIO], None]) -> Path:
    """The archive `name` for this key: from the cache, or written now, with those of other keys forgotten in time."""
    target = cache / "initramfs" / f"{name}-{key}.cpio"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        forget(target.parent.glob(f"{name}-*.cpio"))
        write_whole(target, write)
    return target


def listing_key(paths: Iterable[Path]) -> str:
    """Changes whenever one of the files, or the way archives are put together, does."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    for path in paths:
        state = path.lstat()
        digest.update(f"{path}|{state.st_size}|{state.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]


def module_archive(cache: Path, release: str, folder: Path | None) -> Path:
    """The archive of a kernel's modules; empty where the modules cannot be had."""
    digest = hashlib.sha256(Path(kernel_modules.__file__).read_bytes()).hexdigest()[:16]

    def write(stream: BinaryIO) -> None:
        available = kernel_modules.find_modules(folder) if folder else {}
        write_modules(stream, release, kernel_modules.closure(kernel_modules.WANTED, available))

    return cached(cache, f"modules-{release}", digest, write)


def write_modules(stream: BinaryIO, release: str, modules: Mapping[str, tuple[bytes, tuple[str, ...]]]) -> None:
    archive = Archive(stream)
    # Not by way of /lib, which is a link on some hosts and a directory in some guests; the init links what is missing.
    tree = Tree(archive)
    place = Path("/usr/lib/modules", release)
    for name, (content, _) in sorted(modules.items()):
        tree.file(place / f"{name}.ko", content)
    tree.file(place / "modules.dep", kernel_modules.dep_file(modules).encode())
    archive.finish()


def write_run(
    stream: BinaryIO, setup: Setup, command: Sequence[str], environment: Mapping[str, str], extra: Iterable[Path]
) -> None:
    """The archive of one run: the checkout, programs and files named for it, the init and the command."""
    archive = Archive(stream)
    tree = Tree(archive)
    for place, source in setup.replacements.items():
        tree.copy(source, place)
    for path in (*(CHECKOUT / part for part in CHECKOUT_PARTS), *extra):
        if path.is_dir():
            tree.add_below(path)
        elif path.exists():
            tree.add(path)
    if setup.native:
        tree.add_libraries()
    tree.file(Path("/init"), Path(__file__).with_name("guest-init.sh").read_bytes(), 0o755)
    script = command_script(command, {**setup.environment, **environment})
    tree.file(Path("/run/vmtest/command"), script.encode("utf-8", "surrogateescape"))
    archive.finish()


def command_script(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """The shell script by which the guest's init runs the command, in the checkout's folder."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    return "\n".join([*lines, f"cd {shlex.quote(str(CHECKOUT))} || exit 125", f"exec {shlex.join(command)}", ""])


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
