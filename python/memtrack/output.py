"""Creates output files as the user who asked for them would, even when memtrack runs as root for them."""

from __future__ import annotations

import errno
import io
import itertools
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

from memtrack.errors import OutputError
from memtrack.invoker import Invoker

_ANOTHER_PLACE = "name another place"
_FREE_SPACE = f"free some space, or {_ANOTHER_PLACE}"
_REMEDIES = {
    errno.EEXIST: "use -f to overwrite it, or name another",
    errno.ENOENT: f"create the directory first, or {_ANOTHER_PLACE}",
    errno.EROFS: "name a place on a file system that is not read-only",
    errno.ENOSPC: _FREE_SPACE,
    errno.EDQUOT: _FREE_SPACE,
    errno.EFBIG: f"raise the limit on file sizes (ulimit -f), or {_ANOTHER_PLACE}",
    errno.ENAMETOOLONG: "choose a shorter name",
}

# Tells temporary names of one process apart.
_numbers = itertools.count()


class Output:
    """A file in the making. It goes away when the `with` block ends, unless `keep` has been called.

    What it overwrites stays as it was until then, so that a run which comes to nothing costs no old recording.
    """

    def __init__(self, path: Path, invoker: Invoker, *, replaces: bool, hidden: bool) -> None:
        """With the rights of `invoker`, who owns the file. Raises OSError."""
        self._path = path
        self._replaces = replaces
        self._invoker = invoker
        self._made: Path | None = path
        self._kept = False
        # Read access too: the recording is read back. O_EXCL follows no link and opens nothing that exists.
        flags = os.O_RDWR | os.O_CLOEXEC
        with _rights_of(invoker):
            if not replaces and not hidden:
                fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            else:
                try:
                    # Without a name: nothing is left of it if this process is killed.
                    fd = os.open(path.parent, flags | os.O_TMPFILE, 0o666)
                    self._made = None
                except OSError:  # not every file system has such files (NFS, overlayfs before Linux 6.2)
                    self._made = _temporary_name(path)
                    fd = os.open(self._made, flags | os.O_CREAT | os.O_EXCL, 0o666)
        self.file: BinaryIO = cast(BinaryIO, io.FileIO(fd, "r+b"))
        """Unbuffered."""

    def keep(self) -> None:
        """From here on the file has its name, and stays."""
        if self._made != self._path:
            try:
                with _rights_of(self._invoker):
                    self._name()
            except OSError as error:
                raise _cannot_write(self._path, error) from error
        self._kept = True

    def _name(self) -> None:
        """Only a rename can replace what is there, and only a link fails where something has come to be there."""
        if self._made is None:
            name = _temporary_name(self._path) if self._replaces else self._path
            fd = self.file.fileno()
            # src_dir_fd has no meaning here, but makes it linkat(2), which follows the link to the file.
            os.link(f"/proc/self/fd/{fd}", name, src_dir_fd=fd, follow_symlinks=True)
            self._made = name
        elif not self._replaces:
            os.link(self._made, self._path, follow_symlinks=False)
            self._made.unlink()
            self._made = self._path
        if self._replaces:
            self._made.replace(self._path)

    def write(self, content: bytes) -> None:
        """All of it, or OutputError."""
        rest = memoryview(content)
        try:
            while rest:
                rest = rest[self.file.write(rest) :]
        except OSError as error:
            raise _cannot_write(self._path, error) from error

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        if not self._kept and self._made is not None:
            # It may be gone, or its directory may be.
            with suppress(OSError), _rights_of(self._invoker):
                self._made.unlink()


def create(path: str | os.PathLike[str], invoker: Invoker, *, overwrite: bool = False, hidden: bool = False) -> Output:
    """Makes `path` with the rights of `invoker`; where it is `hidden`, it has no such name until it is kept.

    The last part of the path is never followed where it is a link. What exists is only replaced where `overwrite` says
    so and it is a regular file.
    """
    path = Path(path)
    try:
        with _rights_of(invoker):
            exists = _check_replaceable(path)
        if exists and not overwrite:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        return Output(path, invoker, replaces=exists, hidden=hidden)
    except OSError as error:
        raise _cannot_write(path, error) from error


def _temporary_name(path: Path) -> Path:
    """Beside it, as a rename goes no further than its file system."""
    return path.with_name(f".memtrack-{os.getpid()}-{next(_numbers)}")


def _check_replaceable(path: Path) -> bool:
    """Whether there is a regular file; raises OutputError where there is anything else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISREG(mode):
        return True
    kind = "a symbolic link" if stat.S_ISLNK(mode) else "a directory" if stat.S_ISDIR(mode) else "not a regular file"
    raise OutputError(f"cannot write {_shown(path)}: it is {kind}", "name a file")


def _cannot_write(path: Path, error: OSError) -> OutputError:
    code = error.errno or errno.EIO
    cause = f"cannot write {_shown(path)}: {os.strerror(code).lower()}"
    return OutputError(cause, _REMEDIES.get(code, _ANOTHER_PLACE))


def _shown(path: Path) -> str:
    return ascii(os.fspath(path))[1:-1]


@contextmanager
def _rights_of(invoker: Invoker) -> Iterator[None]:
    """What this thread does to files is done as the user. Other threads go on as they were, with root's capabilities:
    so it is the file system's ids that change, since seteuid(2) is for the whole process."""
    if invoker.is_self:
        yield
        return
    groups, gid, uid = os.getgroups(), os.getegid(), os.geteuid()
    try:
        # Adds no right that anybody lacks meanwhile.
        os.setgroups(invoker.groups)
        _set_file_system_ids(invoker.uid, invoker.gid)
        yield
    finally:
        _set_file_system_ids(uid, gid)
        os.setgroups(groups)


def _set_file_system_ids(uid: int, gid: int) -> None:
    """Raises PermissionError where this process may not."""
    import ctypes  # only under sudo is it worth its time

    libc = ctypes.CDLL(None)
    for change, wanted in ((libc.setfsgid, gid), (libc.setfsuid, uid)):
        change(ctypes.c_uint32(wanted))
        # It tells what was before, and never of a failure; -1 changes nothing.
        if change(ctypes.c_uint32(-1)) & 0xFFFFFFFF != wanted:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
