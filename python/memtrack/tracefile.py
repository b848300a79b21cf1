"""A recording on disk: `container` has the format, this joins its two ends."""

from memtrack.writer import Writer

__all__ = ["Writer"]
