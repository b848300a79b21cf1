"""Files of the host, or of a folder that stands for another machine's root, as entries of an initramfs archive."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence, Set
from pathlib import Path

from tests.vmtest.cpio import Archive
from tests.vmtest.matrix import MatrixError

NOTHING: frozenset[Path] = frozenset()


class Tree:
    """Adds files to an archive under the paths that they have below `root`, with the symlinks that lead to them.

    All paths are the guest's; only `root` and `source` are the host's.
    """

    def __init__(self, archive: Archive, root: Path = Path("/")) -> None:
        self.archive = archive
        self.root = root
        self.elf_files: list[Path] = []

    def add(self, path: Path) -> None:
        """Add a file, a symlink with what it points to, or a directory without what it holds; once each."""
        place = self.directory(path.parent) / path.name
        if name_of(place) in self.archive:
            return
        host = self._host(place)
        if host.is_symlink():
            self.archive.symlink(name_of(place), str(host.readlink()))
            target = target_of(place, host)
            if os.path.lexists(self._host(target)):
                self.add(target)
        elif host.is_dir():
            self.directory(place)
        else:
            self.copy(host, place)

    def add_below(self, top: Path, left_out: Set[Path] = NOTHING) -> None:
        """Add the files under `top` that `files_below` finds."""
        for host in files_below(self._host(top), left_out):
            self.add(Path("/", host.relative_to(self.root)))

    def copy(self, source: Path, path: Path) -> None:
        """Add the host's `source` as `path`."""
        state = source.stat()
        self.file(path, source.read_bytes(), state.st_mode & 0o7777, int(state.st_mtime))

    def file(self, path: Path, content: bytes, mode: int = 0o644, mtime_s: int = 0) -> None:
        """Add a file with this content, whatever the host has at its path."""
        place = self.directory(path.parent) / path.name
        self.archive.file(name_of(place), content, mode, mtime_s)
        if content[:4] == b"\x7fELF":
            self.elf_files.append(place)

    def symlink(self, path: Path, target: str) -> None:
        """Add a symlink, unless there is something of its name already."""
        place = self.directory(path.parent) / path.name
        if name_of(place) not in self.archive:
            self.archive.symlink(name_of(place), target)

    def directory(self, path: Path, mode: int = 0o755) -> Path:
        """`path` with all symlinks in it followed, and those and all its directories added.

        All can be entered by everyone, whatever they are on the host: programs in the guest also run as other users.
        """
        if path == Path("/"):
            return path
        place = self.directory(path.parent) / path.name
        host = self._host(place)
        if host.is_symlink():
            if name_of(place) not in self.archive:
                self.archive.symlink(name_of(place), str(host.readlink()))
            return self.directory(target_of(place, host))
        if name_of(place) not in self.archive:
            self.archive.directory(name_of(place), mode)
        return place

    def add_libraries(self) -> None:
        """Add every shared library that the ELF files added so far are linked with; the host's own machine only."""
        for library in linked_libraries(self.elf_files):
            self.add(library)

    def add_busybox(self, busybox: Path, applets: Sequence[str]) -> None:
        """Add busybox, and a symlink for each of its programs that is not there already."""
        self.file(Path("/bin/busybox"), busybox.read_bytes(), 0o755)
        for applet in sorted(applets):
            self.symlink(Path("/", applet), "/bin/busybox")

    def _host(self, place: Path) -> Path:
        return self.root / name_of(place)


def name_of(place: Path) -> str:
    """A path as archives name it: without the leading slash."""
    return str(place).lstrip("/")


def target_of(place: Path, host: Path) -> Path:
    """What the symlink that the guest has at `place`, and the host at `host`, points to in the guest; one step on."""
    return Path(os.path.normpath(place.parent / host.readlink()))


def files_below(top: Path, left_out: Set[Path] = NOTHING) -> Iterator[Path]:
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
    # It ends with 1 if any of the files is static, and goes on with the next.
    result = subprocess.run(["ldd", *map(str, elf_files)], capture_output=True, text=True)
    return parse_ldd(result.stdout)


def parse_ldd(output: str) -> list[Path]:
    """Library paths in ldd's output: `name => /path (address)`, or `/path (address)` for the loader."""
    paths = re.findall(r"^\s+(?:\S+ => )?(/\S+) \(0x", output, re.MULTILINE)
    return [Path(path) for path in dict.fromkeys(paths)]


def static_busybox() -> Path:
    """The host's busybox, which must need no library."""
    busybox = shutil.which("busybox", path="/usr/bin:/bin")
    if busybox is None or linked_libraries([Path(busybox)]):
        raise MatrixError("guests need a static busybox (install busybox-static)")
    return Path(busybox)


def applets(busybox: Path) -> list[str]:
    """The paths, without the leading slash, that busybox wants its programs to have."""
    return subprocess.run([busybox, "--list-full"], capture_output=True, text=True, check=True).stdout.split()
