"""initramfs archives: what the kernel's unpacker wants, and what independent readers make of them."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import pytest

from tests.vmtest.cpio import ARCHIVE_ALIGNMENT, Archive


def archive(*files: tuple[str, bytes]) -> bytes:
    stream = io.BytesIO()
    out = Archive(stream)
    out.directory("bin")
    out.character_device("console", 5, 1)
    out.symlink("bin/sh", "busybox")
    for name, content in files:
        out.file(name, content, 0o755, mtime_s=1_700_000_000)
    out.finish()
    return stream.getvalue()


def test_header_fields_stand_where_the_format_has_them() -> None:
    stream = io.BytesIO()
    Archive(stream).file("init", b"#!/bin/sh\n", 0o755, mtime_s=0x12345678)
    data = stream.getvalue()
    assert data[:6] == b"070701"
    fields = [int(data[6 + 8 * i : 14 + 8 * i], 16) for i in range(13)]
    assert fields == [1, 0o100755, 0, 0, 1, 0x12345678, 10, 0, 0, 0, 0, 5, 0]
    assert data[110:115] == b"init\0"
    # The name begins after 110 bytes; it and the content are each padded to a multiple of 4.
    assert data[116:126] == b"#!/bin/sh\n"
    assert len(data) % 4 == 0


def test_archives_can_follow_one_another() -> None:
    assert len(archive(("bin/busybox", b"odd"))) % ARCHIVE_ALIGNMENT == 0


def test_a_name_is_taken_once() -> None:
    with pytest.raises(ValueError, match="bin/busybox is in the archive already"):
        archive(("bin/busybox", b"one"), ("bin/busybox", b"two"))


def test_contains() -> None:
    out = Archive(io.BytesIO())
    out.directory("etc")
    assert "etc" in out
    assert "etc/passwd" not in out


def test_an_independent_reader_unpacks_it(tmp_path: Path) -> None:
    odd = b"\xff x".decode("utf-8", "surrogateescape")
    stream = io.BytesIO()
    out = Archive(stream)
    out.directory("bin", 0o711)
    out.symlink("bin/sh", "busybox")
    out.file("bin/busybox", b"\x7fELF", 0o755, mtime_s=1_700_000_000)
    out.file(odd, b"")
    out.finish()
    busybox = ["busybox", "cpio", "-idm"]
    subprocess.run(busybox, input=stream.getvalue(), cwd=tmp_path, capture_output=True, check=True)
    assert (tmp_path / "bin").stat().st_mode & 0o777 == 0o711
    assert (tmp_path / "bin/sh").readlink() == Path("busybox")
    state = (tmp_path / "bin/busybox").stat()
    assert (state.st_mode & 0o777, state.st_size, state.st_mtime) == (0o755, 4, 1_700_000_000)
    assert (tmp_path / odd).read_bytes() == b""
