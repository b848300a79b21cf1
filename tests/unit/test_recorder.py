"""What a recorder chooses by itself."""

from __future__ import annotations

import pytest

from memtrack.recorder import default_ring_bytes

MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("memory", "cpus", "ring"),
    [
        (24 * GIB, 1, 32 * MIB),
        (24 * GIB, 15, 32 * MIB),
        (24 * GIB, 16, 64 * MIB),
        (24 * GIB, 31, 64 * MIB),
        (24 * GIB, 32, 128 * MIB),
        (2048 * GIB, 512, 128 * MIB),
        (2 * GIB, 64, 32 * MIB),  # a 64th of the memory
        (2 * GIB - 4096, 2, 16 * MIB),
        (256 * 1024, 2, 4096),
        (4096, 1, 4096),
    ],
)
def test_the_ring_suits_the_machine(memory: int, cpus: int, ring: int) -> None:
    assert default_ring_bytes(4096, memory, cpus) == ring
