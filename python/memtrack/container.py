"""The recording file's container: which frames there are, and how metadata is written in them.

    header    skippable frame 0x184D2A50, JSON
    events    zstd frames, each with content size and content checksum, of whole event records
    trailer   skippable frame 0x184D2A51, JSON
    seek table  skippable frame 0x184D2A5E, as the zstd seekable format has it; one entry for each frame before it, the
              header and the trailer being entries with decompressed size 0

Any zstd tool passes over skippable frames, so `zstd -dc FILE` gives exactly the array of events. Such frames have no
checksum of their own, so the JSON's last member is "crc32": eight hex digits over every byte before its name.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final, TypeAlias, TypeGuard

from memtrack.errors import RecordingError
from memtrack.events import RECORD_BYTES
from memtrack.figures import Peak

FORMAT: Final = "memtrack"
VERSION: Final = 1

HEADER_MAGIC: Final = 0x184D2A50
TRAILER_MAGIC: Final = 0x184D2A51
SEEK_TABLE_MAGIC: Final = 0x184D2A5E
ZSTD_MAGIC: Final = 0xFD2FB528
SKIPPABLE_MAGICS: Final = range(0x184D2A50, 0x184D2A60)

SKIPPABLE_HEAD: Final = struct.Struct("<II")  # magic, size of what follows
SEEK_ENTRY: Final = struct.Struct("<II")  # compressed size with headers, decompressed size
SEEK_FOOTER: Final = struct.Struct("<IBI")  # number of entries, descriptor (0: no checksums), magic
SEEK_FOOTER_MAGIC: Final = 0x8F92EAB1

# What a writer puts into one frame: about 1 MiB, past which zstd gains nothing on such records.
FRAME_EVENTS: Final = 21845
# What a reader accepts: room for writers with larger frames, and little enough to hold in memory.
MAX_FRAME_BYTES: Final = 16 << 20
# Room for a command line of ARG_MAX's usual 2 MiB would let a hostile file make the JSON parser build hundreds of MiB;
# a longer command is cut by the writer, which says so.
MAX_METADATA_BYTES: Final = 1 << 20

assert FRAME_EVENTS * RECORD_BYTES <= 1 << 20

_CRC_MEMBER: Final = re.compile(rb'"crc32":"([0-9a-f]{8})"\}\Z')


def skippable(magic: int, content: bytes) -> bytes:
    """A whole skippable frame."""
    return SKIPPABLE_HEAD.pack(magic, len(content)) + content


def pack_metadata(metadata: dict[str, Any]) -> bytes:
    """JSON with its checksum. Names that are not UTF-8 are surrogates (os.fsdecode), which JSON's escapes carry."""
    text = json.dumps({**metadata, "crc32": ""}, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    before = text.removesuffix('"crc32":""}').encode("ascii")
    return before + b'"crc32":"%08x"}' % zlib.crc32(before)


def unpack_metadata(content: bytes) -> tuple[dict[str, Any] | None, bool]:
    """What pack_metadata packed, None where it is no JSON object; and whether its checksum holds."""
    found = _CRC_MEMBER.search(content, max(0, len(content) - 24))
    intact = found is not None and int(found[1], 16) == zlib.crc32(content[: found.start()])
    try:
        metadata = json.loads(content.decode("ascii"), parse_constant=_refuse)
    except (ValueError, RecursionError):  # not JSON, not ASCII, absurd numbers; nested without end
        return None, False
    if not isinstance(metadata, dict):
        return None, False
    metadata.pop("crc32", None)
    return metadata, intact


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def check_header(metadata: dict[str, Any]) -> dict[str, Any]:
    """The header, where this version can read what follows it; members of an unexpected type are left out.

    Raises RecordingError for what is no recording, or one whose records cannot be understood.
    """
    if metadata.get("format") != FORMAT:
        raise RecordingError("it is not a memtrack recording", "memtrack reads what `memtrack record` writes")
    version = metadata.get("version")
    if not _is_count(version) or version == 0:
        raise RecordingError("its header names no version", "the file is damaged")
    if version > VERSION:
        raise RecordingError(
            f"it has version {version} of the format, and this memtrack reads up to {VERSION}", "upgrade memtrack"
        )
    header = {name: value for name, value in metadata.items() if name not in _HEADER or _HEADER[name](value)}
    if header.get("event_size") != RECORD_BYTES or "byte_order" not in header or "page_size" not in header:
        raise RecordingError("its header does not say how events are laid out", "the file is damaged")
    return header


def check_trailer(metadata: dict[str, Any]) -> dict[str, Any]:
    """The trailer without members of an unexpected type."""
    return {name: value for name, value in metadata.items() if name not in _TRAILER or _TRAILER[name](value)}


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


def _is_offset(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 64


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _is_counts(value: object) -> bool:
    return isinstance(value, dict) and all(_is_count(count) for count in value.values())


def _is_page_size(value: object) -> bool:
    return isinstance(value, int) and value in {1 << shift for shift in range(12, 31)}


def _is_sources(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(source, dict) for source in value.values())


def _is_status(value: object) -> bool:
    return isinstance(value, dict) and all(
        value.get(name) is None or _is_count(value.get(name)) for name in ("exit_code", "signal")
    )


def _is_peak(value: object) -> bool:
    return isinstance(value, dict) and value.keys() == _PEAK and all(_is_figure(figure) for figure in value.values())


def _is_figure(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63)


_PEAK: Final = {field.name for field in fields(Peak)}
_Check: TypeAlias = Callable[[object], bool]
_HEADER: Final[dict[str, _Check]] = {
    "byte_order": lambda value: value in ("little", "big"),
    "page_size": _is_page_size,
    "command": _is_texts,
    "start_ns": _is_count,
    "clock_offset_ns": _is_offset,
    "detail": lambda value: isinstance(value, dict),
    "sources": _is_sources,
}
_TRAILER: Final[dict[str, _Check]] = {
    "lost_events": _is_count,
    "losses": _is_counts,
    "end_ns": _is_count,
    "status": _is_status,
    "peak": _is_peak,
    "rmap_peak": lambda value: value is None or _is_peak(value),
}
