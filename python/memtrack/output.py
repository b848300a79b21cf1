"""Creates output files as the user who asked for them would, even when memtrack runs as root for them."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from memtrack.errors import OutputError
from memtrack.invoker import Invoker

_REMEDIES = {
    errno.EEXIST: "use -f to overwrite it, or -o to name another",
    errno.ENOENT: "create the directory first, or name another with -o",
    errno.ENOTDIR: "name a path whose directories exist with -o",
    errno.EACCES: "name a place that you can write with -o",
    errno.EPERM: "name a place that you can write with -o",
    errno.EROFS: "name a place on a file system that is not read-only with -o",
    errno.ENOSPC: "free some space, or name another place with -o",
    errno.ELOOP: "the last part of the path is a symbolic link, which is not followed; name a file",
    errno.EISDIR: "name a file with -o",
    errno.ENAMETOOLONG: "choose a shorter name with -o",
}


def create(path: str | os.PathLike[str], invoker: Invoker, *, overwrite: bool = False) -> BinaryIO:
    """Opens `path` for writing and reading back, unbuffered, with the rights of `invoker`, who owns the file.

    The last part of the path is never followed where it is a link, and what exists is only replaced where `overwrite`
    says so and it is a regular file. Not for use while other threads depend on the effective user id.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        with _rights_of(invoker):
            fd = os.open(path, flags | (0 if overwrite else os.O_EXCL), 0o666)
    except OSError as error:
        raise _cannot_create(path, error) from error
    try:
        _prepare(fd, path)
    except BaseException:
        os.close(fd)
        raise
    return cast(BinaryIO, io.FileIO(fd, "r+b"))


def remove(path: str | os.PathLike[str], invoker: Invoker) -> None:
    """Takes away a file that create made and that came to nothing."""
    with _rights_of(invoker):
        Path(path).unlink(missing_ok=True)


def _prepare(fd: int, path: str | os.PathLike[str]) -> None:
    # O_NONBLOCK was for the open only: a FIFO without a reader would have blocked it.
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OutputError(f"cannot write {_shown(path)}: not a regular file", "name a file with -o")
    os.set_blocking(fd, True)
    os.ftruncate(fd, 0)


def _cannot_create(path: str | os.PathLike[str], error: OSError) -> OutputError:
    code = error.errno or 0
    # A FIFO that nobody reads.
    cause = "not a regular file" if code == errno.ENXIO else os.strerror(code).lower()
    return OutputError(f"cannot write {_shown(path)}: {cause}", _REMEDIES.get(code, "name another place with -o"))


def _shown(path: str | os.PathLike[str]) -> str:
    return ascii(os.fspath(path))[1:-1]


@contextmanager
def _rights_of(invoker: Invoker) -> Iterator[None]:
    if invoker.is_self:
        yield
        return
    groups, gid, uid = os.getgroups(), os.getegid(), os.geteuid()
    try:
        os.setgroups(invoker.groups)
        os.setegid(invoker.gid)
        os.seteuid(invoker.uid)
        yield
    finally:
        os.seteuid(uid)
        os.setegid(gid)
        os.setgroups(groups)
