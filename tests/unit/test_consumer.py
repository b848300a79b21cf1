"""What the drainer itself puts between the records."""

from __future__ import annotations

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
