"""A recording on disk: `container` has the format, this joins its two ends."""

from memtrack.reader import Reader
from memtrack.writer import Writer

__all__ = ["Reader", "Writer"]
