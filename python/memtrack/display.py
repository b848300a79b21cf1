"""Figures and names as a terminal shows them."""

from __future__ import annotations

from typing import Final

NOT_OBSERVED: Final = "-"

_SIGNALS: Final = (
    *(
        "HUP",
        "INT",
        "QUIT",
        "ILL",
        "TRAP",
        "ABRT",
        "BUS",
        "FPE",
        "KILL",
        "USR1",
        "SEGV",
        "USR2",
        "PIPE",
        "ALRM",
        "TERM",
    ),
    *("STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH"),
    *("IO", "PWR", "SYS"),
)
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_DECIMALS: Final = (0, 1, 1, 2, 2)


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
    """Binary units; one decimal from KiB on, two from GiB on."""
    if size_bytes is None:
        return NOT_OBSERVED
    value, unit = float(size_bytes), 0
    # Not 1024.0, which is what more than that is rounded to.
    while abs(value) >= 1024 - 0.5 / 10 ** _DECIMALS[unit] and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.{_DECIMALS[unit]}f} {_UNITS[unit]}"


def duration(time_ns: int | None) -> str:
    """As many digits as matter: 5.2 ms, 1.23 s, 2 min 05 s, 3 h 02 min."""
    if time_ns is None:
        return NOT_OBSERVED
    if time_ns < 999_950_000:
        return f"{time_ns / 1e6:.1f} ms" if time_ns else "0 ms"
    if time_ns < 59_995_000_000:
        return f"{time_ns / 1e9:.2f} s"
    seconds = round(time_ns / 1e9)
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02} s"
    minutes = seconds // 60
    return f"{minutes // 60} h {minutes % 60:02} min"


def signal_name(number: int) -> str:
    """SIGKILL for 9: Linux's names on any machine, since recordings come from there."""
    return f"SIG{_SIGNALS[number - 1]}" if 0 < number <= len(_SIGNALS) else f"signal {number}"
