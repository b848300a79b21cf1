"""A recorder that keeps nothing but how many records of each type there were."""

from __future__ import annotations

from collections import Counter

from memtrack import features, loader
from memtrack.consumer import Consumer
from memtrack.events import RECORD_BYTES
from memtrack.facts import KernelFacts
from memtrack.loader import Probes
from memtrack.ringbuf import RingBuffer


class Counting:
    """`facts`: of another kernel than this one is."""

    def __init__(self, ring_bytes: int, facts: KernelFacts | None = None) -> None:
        self.probes: Probes = loader.load(facts or features.probe(), rmap=False, ring_bytes=ring_bytes)
        self.ring = RingBuffer(self.probes.ring_fd, ring_bytes)
        self.counts: Counter[int] = Counter()
        self.consumer = Consumer(self.probes, self.ring, self.count)
        self.consumer.start()

    def count(self, events: memoryview) -> None:
        self.counts.update(events[::RECORD_BYTES].tobytes())

    def close(self) -> None:
        self.probes.detach_all_but_iterators()
        self.consumer.stop()
        self.tally = self.probes.tally()
        self.ring.close()
        self.probes.close()
