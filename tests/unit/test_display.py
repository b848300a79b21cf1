"""What a terminal is given."""

from __future__ import annotations

import signal
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memtrack import display


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("make", "make"),
        ("käse \N{SNOWMAN}", "käse \N{SNOWMAN}"),
        ("a\nb\tc\0", "a\\nb\\tc\\x00"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("\x9b31m", "\\x9b31m"),  # the one-byte CSI
        ("\udcff\udc80", "\\xff\\x80"),
        ("\ud800", "\\ud800"),
        ("\u202egnp.exe", "\\u202egnp.exe"),  # right to left
        ("a\u200bb\u2028c", "a\\u200bb\\u2028c"),
        ("C:\\x", "C:\\\\x"),
        ("", ""),
    ],
)
def test_names(name: str, text: str) -> None:
    assert display.shown(name) == text


@settings(deadline=None)
@given(st.text(st.characters()))
def test_no_name_is_dangerous_or_like_another(name: str) -> None:
    text = display.shown(name)
    assert text.isprintable()
    text.encode("utf-8")
    assert "\\" in text or text == name


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (4096, "4.0 KiB"),
        (1024 * 1024 - 1, "1.0 MiB"),
        (1024 * 1024, "1.0 MiB"),
        (1023 * 1024, "1023.0 KiB"),
        (3 << 29, "1.50 GiB"),
        (5 << 40, "5.00 TiB"),
        (1 << 62, "4194304.00 TiB"),
        (-4096, "-4.0 KiB"),
    ],
)
def test_sizes(size_bytes: int | None, text: str) -> None:
    assert display.size(size_bytes) == text


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (None, "-"),
        (0, "0 ms"),
        (1, "0.0 ms"),
        (5_210_000, "5.2 ms"),
        (999_960_000, "1.00 s"),
        (12_345_000_000, "12.35 s"),
        (59_996_000_000, "1 min 00 s"),
        (125_000_000_000, "2 min 05 s"),
        (3599_600_000_000, "1 h 00 min"),
        (10_920_000_000_000, "3 h 02 min"),
    ],
)
def test_durations(time_ns: int | None, text: str) -> None:
    assert display.duration(time_ns) == text


@pytest.mark.parametrize(
    ("number", "text"), [(1, "SIGHUP"), (9, "SIGKILL"), (31, "SIGSYS"), (0, "signal 0"), (40, "signal 40")]
)
def test_signals(number: int, text: str) -> None:
    assert display.signal_name(number) == text


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux's numbers are only known there")
def test_signals_are_linuxs() -> None:
    for number in signal.Signals:
        if number < 32:
            assert signal.Signals[display.signal_name(number)] == number
