"""Figures and names as a terminal shows them."""

from __future__ import annotations

import signal
from typing import Final

NOT_OBSERVED: Final = "-"

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def shown(name: str) -> str:
    """A name from elsewhere, made safe: what could move the cursor, change colours or hide text is escaped.

    Bytes that were not UTF-8 (surrogates, see os.fsdecode) show as what they were.
    """
    return "".join(_escaped(character) for character in name)


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    # Not printable in Python's sense: controls, separators but the space, surrogates, direction marks, unassigned.
    if not character.isprintable():
        return character.encode("unicode_escape", "surrogatepass").decode("ascii")
    return "\\\\" if character == "\\" else character


def size(size_bytes: int | None) -> str:
    """Binary units, one decimal from KiB on."""
    if size_bytes is None:
        return NOT_OBSERVED
    value, unit = float(size_bytes), 0
    # 1023.95 would be shown as 1024.0
    while abs(value) >= (1023.95 if unit else 1024) and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{size_bytes} B"


def duration(time_ns: int | None) -> str:
    """Three or four digits that matter: 5.21 ms, 1.234 s, 2 min 05 s, 3 h 02 min."""
    if time_ns is None:
        return NOT_OBSERVED
    if time_ns < 1_000_000:
        return f"{time_ns / 1e3:.1f} us"
    if time_ns < 999_500_000:
        return f"{time_ns / 1e6:.1f} ms"
    if time_ns < 59_995_000_000:
        return f"{time_ns / 1e9:.2f} s"
    seconds = round(time_ns / 1e9)
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02} s"
    minutes = seconds // 60
    return f"{minutes // 60} h {minutes % 60:02} min"


def signal_name(number: int) -> str:
    """SIGKILL for 9, where this machine has a name for it."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
