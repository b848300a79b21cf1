"""What the drainer itself puts between the records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from memtrack.consumer import Consumer
from memtrack.events import NATIVE, RECORD_BYTES, Lost, decode, lost
from memtrack.loader import Tally

COUNTED = Tally(**dict.fromkeys(Tally.__dataclass_fields__, 0))


def test_a_loss_is_no_later_than_what_waits_behind_it() -> None:
    probes: Any = SimpleNamespace(
        ring_wakeup_bytes=4096,
        tally=lambda: replace(COUNTED, lost_ring=3),
        skipped=lambda: 0,
        sync=lambda *, last: True,  # noqa: ARG005 # the parameter has a name for whoever calls it
    )
    ring: Any = SimpleNamespace(
        produced_bytes=2 * RECORD_BYTES, consumed_bytes=RECORD_BYTES, waiting_bytes=RECORD_BYTES
    )
    consumer = Consumer(probes, ring, lambda _records: None)
    buffer = bytearray(2 * RECORD_BYTES)
    buffer[:RECORD_BYTES] = lost(1000, 0)
    assert consumer._account_losses(buffer, RECORD_BYTES, look=True) == RECORD_BYTES
    ring.consumed_bytes = ring.produced_bytes
    assert consumer._account_losses(buffer, RECORD_BYTES, look=False) == 2 * RECORD_BYTES
    _, event = decode(buffer, NATIVE)
    assert isinstance(event, Lost)
    assert (event.time_ns, event.lost_events) == (1000, 3)


class PendingRing:
    """Two records were written when the first losses were found; the second is still there when the end has come."""

    produced_bytes = 2 * RECORD_BYTES
    waiting_bytes = 0

    def __init__(self, at_last: Callable[[], None]) -> None:
        self.consumed_bytes = 0
        self._at_last = at_last

    def drain(self, buffer: memoryview, enough_bytes: int, timeout_ms: int) -> int:  # noqa: ARG002 # RingBuffer's
        if self.consumed_bytes == self.produced_bytes:
            return 0
        buffer[:RECORD_BYTES] = lost(1000, 0)
        self.consumed_bytes += RECORD_BYTES
        if self.consumed_bytes < self.produced_bytes:
            self._at_last()
        return RECORD_BYTES


def test_what_is_lost_while_a_loss_waits_for_its_place_is_counted_at_the_end() -> None:
    tally = [3]
    records: list[bytes] = []

    def end() -> None:
        tally[0] = 10
        consumer._stopping.set()

    ring: Any = PendingRing(end)
    probes: Any = SimpleNamespace(
        ring_wakeup_bytes=4096,
        tally=lambda: replace(COUNTED, lost_ring=tally[0]),
        skipped=lambda: 0,
        sync=lambda *, last: True,  # noqa: ARG005 # the parameter has a name for whoever calls it
    )
    consumer = Consumer(probes, ring, lambda of: records.append(bytes(of)))
    assert consumer._account_losses(bytearray(RECORD_BYTES), 0, look=True) == 0  # the gap is open
    consumer._drain_until_stopped()
    consumer._full.put(None)
    consumer._write()
    told = [event.lost_events for event in decode(b"".join(records), NATIVE) if isinstance(event, Lost)]
    assert sum(told) == consumer.lost_events == 10
