"""Events as numpy arrays, a frame at a time. Needs numpy, which memtrack's extra of that name brings."""

from __future__ import annotations

from typing import Any, Final

from memtrack.errors import UsageError
from memtrack.events import RECORD_BYTES, ByteOrder

# The payloads by the names of the classes in events.py, in small letters, and their fields with type and offset.
_PAYLOADS: Final[dict[str, dict[str, tuple[str, int]]]] = {
    "alloc": {"addr": ("u8", 24), "size_bytes": ("u8", 32)},
    "realloc": {"old_addr": ("u8", 24), "new_addr": ("u8", 32), "size_bytes": ("u8", 40)},
    "figure": {"member": ("i4", 24), "size_bytes": ("u8", 32)},
    "rmap": {"member": ("i4", 24), "delta_pages": ("i8", 32), "addr": ("u8", 40)},
    "fork": {"parent_pid": ("u4", 24), "flags": ("u4", 28)},
    "exec": {"comm": ("S16", 24)},
    "exit": {"wait_status": ("i4", 24)},
    "lost": {"lost_events": ("u8", 24)},
    "mark": {"kind": ("u4", 24), "label": ("S20", 28)},
    "adopt": {"comm": ("S16", 24), "parent_pid": ("u4", 40)},
    "told": {"member": ("i4", 24), "processes": ("u4", 28), "size_bytes": ("u8", 32), "at_ns": ("u8", 40)},
}
_HEAD: Final = {"type": ("u1", 0), "time_ns": ("u8", 8), "pid": ("u4", 16), "tid": ("u4", 20)}


def dtype(byte_order: ByteOrder) -> Any:
    """The record as numpy.dtype: type, time_ns, pid, tid, and the payload in every way that it may be read.

    As in the C union, which of them is meant is told by `type`: batch["figure"]["size_bytes"] is for RSS and SYNC.
    """
    order = "<" if byte_order == "little" else ">"
    fields = {name: (order + kind, offset) for name, (kind, offset) in _HEAD.items()}
    payloads = {
        # Offsets count from the payload's start.
        name: (_struct({field: (order + kind, at - 24) for field, (kind, at) in payload.items()}, 24), 24)
        for name, payload in _PAYLOADS.items()
    }
    return _struct({**fields, **payloads}, RECORD_BYTES)


def of_frame(records: bytes, layout: Any) -> Any:
    """The records as a numpy.ndarray that cannot be written to, without a copy."""
    return _numpy().frombuffer(records, dtype=layout)


def between(batch: Any, from_ns: int | None, to_ns: int | None) -> Any:
    """Those of `from_ns` or later, and before `to_ns`."""
    if from_ns is not None:
        batch = _taken(batch, batch["time_ns"] >= max(0, from_ns))
    if to_ns is not None:
        batch = _taken(batch, batch["time_ns"] < max(0, to_ns))
    return batch


def _taken(batch: Any, wanted: Any) -> Any:
    # As plain bytes: numpy copies records field by field, so these several times over, and nothing of what is between.
    taken = batch.view(f"V{RECORD_BYTES}")[wanted]
    taken.flags.writeable = False
    return taken.view(batch.dtype)


def _struct(fields: dict[str, tuple[Any, int]], size: int) -> Any:
    return _numpy().dtype(
        {
            "names": list(fields),
            "formats": [kind for kind, _ in fields.values()],
            "offsets": [offset for _, offset in fields.values()],
            "itemsize": size,
        }
    )


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise UsageError("batches of events need numpy", "pip install 'memtrack[numpy]'") from error
    return numpy
