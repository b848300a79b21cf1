"""Resident memory of a process tree, event by event, from the kernel's own accounting.

Recording (`record`, `Tracker`) needs Linux, the native extension and the right to load BPF programs; reading
(`open`, `Recording`) needs neither. So what records is imported when it is first asked for.
"""

from __future__ import annotations

import os
import sys

# `python -m memtrack` looks in the current directory first, and so would every import from here on. That directory is
# of whoever is recorded, and this may be root: a file there that is named like a module is none of ours. While -m looks
# for its module, argv begins with "-m" instead of a path.
if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)] in ("memtrack", "-mmemtrack"):
    try:
        if sys.path[:1] == [os.getcwd()]:  # noqa: PTH109 - pathlib would be looked for there
            del sys.path[0]
    except OSError:  # the directory has gone, and Python has not put it there
        pass

    import signal

    # Ctrl-C while the rest is imported ends the program, as it does later: without a traceback. See __main__.py.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

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
from memtrack.figures import Figures, Peak, Process
from memtrack.recording import Recording, Status, open  # noqa: A004 - memtrack.open is the name of the contract
from memtrack.version import VERSION

__version__ = VERSION

if TYPE_CHECKING:
    from memtrack.recorder import Tracker, record

__all__ = [
    "CommandError",
    "EventType",
    "FeatureError",
    "Figures",
    "LoadError",
    "MarkKind",
    "Member",
    "MemtrackError",
    "OutputError",
    "Peak",
    "Process",
    "Recording",
    "RecordingError",
    "Status",
    "Tracker",
    "UsageError",
    "__version__",
    "open",
    "record",
]

if not TYPE_CHECKING:  # or it would make any name a public one, of any type

    def __getattr__(name: str) -> Any:
        if name not in ("Tracker", "record"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            from memtrack import recorder
        except ImportError as error:
            raise LoadError(
                f"cannot load the native extension: {error}", "recording needs Linux and a build for this machine"
            ) from error
        return getattr(recorder, name)


def __dir__() -> list[str]:
    return __all__
