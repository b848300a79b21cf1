"""Recordings of each format version stay readable, with the same figures. They are never made anew."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

import memtrack
from memtrack import container, events
from memtrack.events import EventType
from memtrack.tracefile import Reader

DATA = Path(__file__).resolve().parents[1] / "data"

# CRC-32 of all events, which are one of each type and more.
RECORDINGS = {"version-1": 4112482167}


def holds(actual: Any, expected: Any) -> bool:
    """Whether all that was expected is there; reports may say more as time goes on."""
    if isinstance(expected, dict):
        return isinstance(actual, dict) and all(
            name in actual and holds(actual[name], value) for name, value in expected.items()
        )
    if isinstance(expected, list):
        return (
            isinstance(actual, list)
            and len(actual) == len(expected)
            and all(holds(*pair) for pair in zip(actual, expected, strict=True))
        )
    return bool(actual == expected and type(actual) is type(expected))


def test_every_version_has_one() -> None:
    assert sorted(path.stem for path in DATA.glob("version-*.zst")) == sorted(RECORDINGS)
    assert len(RECORDINGS) == container.VERSION


@pytest.mark.parametrize("name", RECORDINGS)
def test_events(name: str) -> None:
    with Reader(DATA / f"{name}.zst") as reader:
        data = b"".join(reader.frames())
    assert reader.complete
    assert zlib.crc32(data) == RECORDINGS[name]
    decoded = list(events.decode(data, reader.header["byte_order"]))
    assert b"".join(events.encode(event, reader.header["byte_order"]) for event in decoded) == data
    assert {event.type for event in decoded} >= set(EventType)


@pytest.mark.parametrize("name", RECORDINGS)
def test_figures(name: str) -> None:
    expected = json.loads((DATA / f"{name}.json").read_text())
    actual = json.loads(json.dumps(memtrack.open(DATA / f"{name}.zst").report()))
    assert holds(actual, expected)
