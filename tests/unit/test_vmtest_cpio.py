"""initramfs archives: what the kernel's unpacker wants, and what independent readers make of them."""

from __future__ import annotations

import io
import shutil
import subprocess

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


@pytest.mark.skipif(shutil.which("cpio") is None, reason="cpio is not installed")
def test_cpio_reads_it() -> None:
    listed = subprocess.run(
        ["cpio", "-tv", "--quiet"],
        input=archive(("bin/busybox", b"\x7fELF"), (b"\xff x".decode("utf-8", "surrogateescape"), b"")),
        capture_output=True,
        check=True,
        env={"TZ": "UTC", "LC_ALL": "C"},
    ).stdout.splitlines()
    assert len(listed) == 5
    assert listed[0].startswith(b"drwxr-xr-x")
    assert b"  5,   1 " in listed[1]
    assert listed[2].endswith(b"bin/sh -> busybox")
    assert listed[4].endswith(b" \xff x")
    assert listed[3].startswith(b"-rwxr-xr-x   1 root     root            4 Nov 14  2023")
