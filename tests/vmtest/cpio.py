"""Write cpio archives in the "newc" form, which is what the kernel unpacks as an initramfs.

Archives that follow one another in one file are unpacked one after the other, later entries over earlier ones.
The format: Documentation/driver-api/early-userspace/buffer-format.rst in the kernel's tree.
"""

from __future__ import annotations

import os
import stat
from typing import BinaryIO

# The kernel looks for the next archive after zero bytes, and wants an archive to start at a multiple of 4.
ARCHIVE_ALIGNMENT = 512


class Archive:
    """One archive being written to `stream`; the caller owns and closes the stream.

    Directories must be added before what they hold: the kernel creates no parent.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._offset = 0
        self._inode = 0
        self._names: set[str] = set()

    def __contains__(self, name: str) -> bool:
        """Whether an entry of this name (without a leading slash) was added."""
        return name in self._names

    def directory(self, name: str, mode: int = 0o755) -> None:
        self._entry(name, stat.S_IFDIR | mode)

    def symlink(self, name: str, target: str) -> None:
        self._entry(name, stat.S_IFLNK | 0o777, os.fsencode(target))

    def file(self, name: str, content: bytes, mode: int = 0o644, mtime_s: int = 0) -> None:
        self._entry(name, stat.S_IFREG | mode, content, mtime_s=mtime_s)

    def character_device(self, name: str, major: int, minor: int, mode: int = 0o600) -> None:
        self._entry(name, stat.S_IFCHR | mode, device=(major, minor))

    def finish(self) -> None:
        """Write the end mark and pad, so that another archive may follow in the same file."""
        self._entry("TRAILER!!!", 0)
        self._pad(ARCHIVE_ALIGNMENT)

    def _entry(
        self, name: str, mode: int, content: bytes = b"", mtime_s: int = 0, device: tuple[int, int] = (0, 0)
    ) -> None:
        if name in self._names:
            raise ValueError(f"{name} is in the archive already")
        self._names.add(name)
        self._inode += 1
        encoded = os.fsencode(name) + b"\0"
        # inode, mode, uid, gid, links, mtime, size, device of the file (2), device that it is (2), name size, checksum
        links = 2 if stat.S_ISDIR(mode) else 1
        fields = (self._inode, mode, 0, 0, links, mtime_s, len(content), 0, 0, *device, len(encoded), 0)
        self._write(b"070701" + b"".join(b"%08x" % field for field in fields) + encoded)
        self._pad(4)
        self._write(content)
        self._pad(4)

    def _pad(self, alignment: int) -> None:
        self._write(bytes(-self._offset % alignment))

    def _write(self, data: bytes) -> None:
        self._stream.write(data)
        self._offset += len(data)
