"""What can go wrong, as one tree of exceptions.

Each error says the cause and then the remedy in parentheses: lower case, no full stop. The exit status belongs to the
exception, so that the one place that prints errors need not know them apart.
"""

from __future__ import annotations

# What env(1), timeout(1) and friends end with when they, and not the command, failed.
EXIT_MEMTRACK_FAILED = 125
EXIT_COMMAND_NOT_EXECUTABLE = 126
EXIT_COMMAND_NOT_FOUND = 127


class MemtrackError(Exception):
    """The root of every error that memtrack raises on purpose."""

    exit_code: int = EXIT_MEMTRACK_FAILED

    def __init__(self, cause: str, remedy: str | None = None) -> None:
        super().__init__(cause, remedy)
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.cause} ({self.remedy})" if self.remedy else self.cause


class UsageError(MemtrackError):
    """The caller asked for something that makes no sense."""


class LoadError(MemtrackError):
    """The native extension or its BPF object could not be loaded."""


class FeatureError(MemtrackError):
    """The kernel, or what it permits this process, lacks what recording cannot do without."""


class RecordingError(MemtrackError):
    """A file is no recording of ours, or nothing of it can be read."""


class OutputError(MemtrackError):
    """The recording or a report could not be written."""


class CommandError(MemtrackError):
    """The command could not be started; ends as env(1) does."""

    def __init__(self, cause: str, remedy: str | None = None, *, found: bool) -> None:
        super().__init__(cause, remedy)
        self.exit_code = EXIT_COMMAND_NOT_EXECUTABLE if found else EXIT_COMMAND_NOT_FOUND
