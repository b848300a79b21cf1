"""Resident memory of a process tree, event by event, from the kernel's own accounting.

Recording (`record`, `Tracker`) needs Linux, the native extension and the right to load BPF programs; reading
(`open`, `Recording`) needs neither. So what records is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memtrack.errors import (
    CommandError,
    FeatureError,
    LoadError,
    MemtrackError,
    OutputError,
    RecordingError,
    UsageError,
)
from memtrack.events import EventType, MarkKind, Member
from memtrack.recording import Recording, open  # noqa: A004 - memtrack.open is the name of the contract
from memtrack.version import VERSION

__version__ = VERSION

if TYPE_CHECKING:
    from memtrack.recorder import Tracker, record

__all__ = [
    "CommandError",
    "EventType",
    "FeatureError",
    "LoadError",
    "MarkKind",
    "Member",
    "MemtrackError",
    "OutputError",
    "Recording",
    "RecordingError",
    "Tracker",
    "UsageError",
    "__version__",
    "open",
    "record",
]

_RECORDING = ("Tracker", "record")


def __getattr__(name: str) -> Any:
    if name not in _RECORDING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from memtrack import recorder
    except ImportError as error:
        raise LoadError(
            f"cannot load the native extension: {error}", "recording needs Linux and a build for this machine"
        ) from error
    return getattr(recorder, name)
