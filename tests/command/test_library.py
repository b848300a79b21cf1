"""memtrack as a harness uses it, over and over in one process: it keeps nothing, and changes nothing for anybody."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterator

import pytest

import memtrack

pytestmark = pytest.mark.bpf


@pytest.fixture
def collector_off() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("collector_off")
def test_a_recording_that_nobody_has_any_more_is_gone_at_once() -> None:
    # Not only when the garbage collector comes by: it has a file, and its tracker has buffers.
    descriptors = set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - as text
    recordings = []
    for events in (True, False):
        recording = memtrack.record(["true"], events=events)
        recordings.append(weakref.ref(recording))
        del recording
    assert [recording() for recording in recordings] == [None, None]
    assert set(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208
