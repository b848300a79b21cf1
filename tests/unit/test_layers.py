"""What the two layers may be apart by, and what is compared."""

from __future__ import annotations

import pytest

from memtrack.figures import Peak, figures_of, peak_of
from memtrack.layers import bound_bytes, compare

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("page", "tier", "bound"),
    [
        # A page table: as many pages as entries of 8 bytes fit into one.
        (4 * KIB, "percpu", 512 * 4 * KIB),
        (16 * KIB, "percpu", 2048 * 16 * KIB),
        (4 * KIB, "classic", 512 * 4 * KIB),
        # And what a thread keeps of 66 faults before 6.2: 16 pages of 4 KiB each, one of 64 KiB.
        (4 * KIB, "count", 512 * 4 * KIB + 66 * 16 * 4 * KIB),
        (64 * KIB, "count", 8192 * 64 * KIB + 66 * 64 * KIB),
        (4 * KIB, None, 512 * 4 * KIB + 66 * 16 * 4 * KIB),
    ],
)
def test_what_the_kernel_explains(page: int, tier: str | None, bound: int) -> None:
    assert bound_bytes(page, tier) == bound


def peak(anon: int | None, processes: int = 1) -> Peak:
    return peak_of(None if anon is None else (1, [0, anon, 0, 0], processes))


def test_the_tree_is_given_the_bound_for_each_process() -> None:
    for apart, differing in ((3 * MIB, 0), (3 * MIB + 1, 1)):
        found = compare(MIB, peak(9 * MIB, processes=3), peak(9 * MIB - apart), [])
        assert found is not None
        assert [difference.size_bytes for difference in found.differences] == [apart] * differing


def test_one_layer_is_not_compared() -> None:
    assert compare(MIB, peak(9 * MIB), None, []) is None
    assert compare(MIB, peak(None), peak(9 * MIB), []) is None
    assert figures_of(None).rss_bytes is None


def test_what_was_not_observed_is_not_compared() -> None:
    found = compare(MIB, peak(9 * MIB), peak(None), [])
    assert found is not None
    assert not found.differences
