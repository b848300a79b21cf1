"""The two reducers come to the same, whatever they are fed."""

from __future__ import annotations

import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memtrack import events, reducer
from memtrack.events import NATIVE, RECORD_BYTES, ByteOrder, EventType
from memtrack.reducer import NativeTimeline
from memtrack.timeline import Timeline
from memtrack.tracefile import Reader
from tests.unit.streams import ANON, FILE, MIB, PAGE, SHMEM, Stream, recording

DATA = Path(__file__).resolve().parents[1] / "data"
OTHER: ByteOrder = "big" if NATIVE == "little" else "little"

try:
    NativeTimeline()
except ImportError:
    pytestmark = pytest.mark.skip(reason="the extension is not built: there is one reducer only")

# What every record starts with, and the payload in each of the ways that it is read.
_HEAD = struct.Struct("=B7xQII")
_PAYLOADS = (struct.Struct("=iIQQ"), struct.Struct("=II16x"), struct.Struct("=16sI4x"), struct.Struct("=Q16x"))

_KINDS = st.one_of(
    st.sampled_from([EventType.RSS, EventType.SYNC, EventType.RMAP, EventType.RMAP]),
    st.sampled_from([EventType.FORK, EventType.EXEC, EventType.EXIT, EventType.ADOPT, EventType.PEAK, EventType.LOST]),
    st.integers(0, 255),
)
# Few, so that they meet; and those at the ends.
_PIDS = st.one_of(st.integers(0, 4), st.sampled_from([2**31 - 1, 2**31, 2**32 - 1]))
_TIMES = st.one_of(st.integers(0, 20), st.sampled_from([2**63, 2**64 - 1]))
_MEMBERS = st.one_of(st.integers(0, 3), st.integers(0, 3), st.sampled_from([-1, 4, 2**31 - 1, -(2**31)]))
_WORDS = st.one_of(
    st.integers(0, 4).map(lambda number: number * PAGE),
    st.sampled_from([1, 512, 2**64 - 1, 2**64 - 512, 2**62, 2**63 - 1, 2**63, 2**63 + 1, 2**52, 2**64 - 2**52]),
)
_COMMS = st.sampled_from([b"", b"job", b"\0ob", b"\xff\xfe", b"sixteen bytes ok"])


@st.composite
def _records(draw: st.DrawFn) -> bytes:
    kind = draw(_KINDS)
    head = _HEAD.pack(kind, draw(_TIMES), draw(_PIDS), draw(_PIDS))
    if kind in (EventType.EXEC, EventType.ADOPT):
        return head + _PAYLOADS[2].pack(draw(_COMMS), draw(_PIDS))
    if kind == EventType.FORK:
        return head + _PAYLOADS[1].pack(draw(_PIDS), draw(st.integers(0, 1)))
    if kind == EventType.LOST:
        return head + _PAYLOADS[3].pack(draw(_WORDS))
    return head + _PAYLOADS[0].pack(draw(_MEMBERS), draw(_PIDS), draw(_WORDS), draw(_WORDS))


def filler(count: int) -> bytes:
    """Records that say nothing, of other tasks: what a pair of RMAP records is looked for behind."""
    return b"".join(_HEAD.pack(14, 0, 9, 9) + bytes(24) for _ in range(count))


_FEW = st.integers(0, 2)
_PAGES = st.sampled_from([1, 2, 512])


@st.composite
def _known(draw: st.DrawFn) -> bytes:
    """All that is known of a process: without it, most of what follows adds to nothing."""
    return Stream().sync(draw(_FEW), file=draw(_PAGES) * PAGE, anon=draw(_PAGES) * PAGE).data


@st.composite
def _peaks(draw: st.DrawFn) -> bytes:
    return Stream().peak(draw(_FEW), draw(st.integers(0, 3)), anon=draw(_PAGES) * PAGE, file=draw(_PAGES) * PAGE).data


@st.composite
def _replacements(draw: st.DrawFn) -> bytes:
    """What may be one step, or just misses being it."""
    pid, tid, pages = draw(_FEW), draw(_FEW), draw(_PAGES)
    stream = Stream().rmap(pid, draw(st.integers(0, 3)), pages, PAGE, tid=tid)
    stream.raw(filler(draw(st.sampled_from([0, 1, 254, 255, 256]))))
    removed = draw(st.sampled_from([-pages, -pages, -pages, 0, -1, 1]))
    return stream.rmap(pid, draw(st.integers(0, 3)), removed, PAGE, tid=tid).data


@st.composite
def _second_forks(draw: st.DrawFn) -> bytes:
    stream, pid = Stream(), draw(_FEW)
    if draw(st.booleans()):
        stream.lost(1)
    return stream.fork(pid, draw(_FEW)).data


_STREAMS = st.lists(
    st.one_of(_records(), _records(), _known(), _peaks(), _replacements(), _second_forks()), max_size=30
)


def differ(
    pieces: list[bytes],
    *,
    rss: bool = True,
    rmap: bool = True,
    sampled: bool = False,
    page_size: int = PAGE,
    ask: bool = False,
) -> None:
    """Feeds both, and asks both: at the end, or after each piece."""
    plain = Timeline(page_size=page_size, rss=rss, rmap=rmap, sampled=sampled)
    native = NativeTimeline(page_size=page_size, rss=rss, rmap=rmap, sampled=sampled)
    for piece in pieces:
        plain.feed(piece)
        native.feed(piece)
        if ask:
            assert native.snapshot() == plain.snapshot()
            assert native.result() == plain.result()
    assert native.snapshot() == plain.snapshot()
    assert native.result() == plain.result()
    assert list(native.snapshot()) == list(plain.snapshot())


@settings(deadline=None, max_examples=400)
@given(_STREAMS, st.booleans(), st.booleans(), st.booleans(), st.sampled_from([4096, 65536, 1 << 30]), st.booleans())
@example([b""], True, True, False, 4096, True)
def test_any_stream(pieces: list[bytes], rss: bool, rmap: bool, sampled: bool, page_size: int, ask: bool) -> None:
    differ(pieces, rss=rss, rmap=rmap, sampled=sampled, page_size=page_size, ask=ask)


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=20 * RECORD_BYTES).map(lambda raw: raw[: len(raw) // RECORD_BYTES * RECORD_BYTES]))
def test_any_bytes(data: bytes) -> None:
    differ([data])


@settings(deadline=None, max_examples=200)
@given(_STREAMS, st.data())
def test_any_pieces(pieces: list[bytes], data: st.DataObject) -> None:
    """Neither is told by where a buffer ends."""
    stream = b"".join(pieces)
    whole = NativeTimeline(rmap=True)
    whole.feed(stream)
    cut = NativeTimeline(rmap=True)
    while stream:
        size = data.draw(st.integers(1, len(stream) // RECORD_BYTES)) * RECORD_BYTES
        cut.feed(stream[:size])
        stream = stream[size:]
    one, other = whole.result(), cut.result()
    assert (one.peak, one.rmap_peak, one.processes) == (other.peak, other.rmap_peak, other.processes)


@pytest.mark.parametrize("between", [0, 1, 254, 255, 256, 257, 600])
@pytest.mark.parametrize("size", [1, 7, 100, 256, 257, 1000])
def test_replacements_far_apart(between: int, size: int) -> None:
    """One page after the other is replaced; the other half comes earlier or later, or too late to be seen."""
    stream = Stream().root(10, anon=512 * PAGE, file=64 * PAGE)
    for number in range(1, 9):
        stream.rmap(10, ANON, 512, 0x200000 * number, tid=number).rmap(10, FILE, 1, 0)
    stream.raw(filler(between))
    for number in range(1, 9):
        stream.rmap(10, ANON, -512, 0x200000 * number, tid=number).raw(filler(number))
    pieces = [
        stream.data[start : start + size * RECORD_BYTES] for start in range(0, len(stream.data), size * RECORD_BYTES)
    ]
    differ(pieces)
    differ(pieces[:-1], ask=size > 50)


@pytest.mark.parametrize(("between", "seen"), [(254, True), (255, True), (256, False), (257, False)])
def test_how_far_ahead_is_looked(between: int, seen: bool) -> None:
    stream = Stream().root(10, anon=512 * PAGE).rmap(10, ANON, 512, PAGE).raw(filler(between))
    stream.rmap(10, ANON, -512, PAGE).raw(filler(300))
    for cut in range(0, len(stream.data), 50 * RECORD_BYTES):
        differ([stream.data[:cut], stream.data[cut:]])
    found = reducer.make(rmap=True)
    found.feed(stream.data)
    peak = found.result().rmap_peak
    assert peak is not None
    assert peak.rss_bytes == (512 if seen else 1024) * PAGE


def test_sizes_at_the_end_of_64_bits() -> None:
    stream = Stream()
    for pid in range(1, 6):
        stream.root(pid, anon=2**63 - 1, file=2**63 - 1, shmem=2**63 - 1)
        stream.rmap(pid, ANON, 2**63 - 1, 0).rmap(pid, FILE, -(2**63), 0).rmap(pid, FILE, -(2**63), 0)
    stream.lost(2**64 - 1).lost(2**64 - 1)
    differ([stream.data], ask=True)
    result = reducer.make(rmap=True)
    result.feed(stream.data)
    found = result.result()
    assert found.peak.rss_bytes == found.peak.anon_bytes == 2**63 - 1
    assert found.lost_events == 2**64 - 1


def test_more_processes_than_a_table_starts_with() -> None:
    stream = Stream().root(1, anon=MIB)
    for pid in range(2, 3000):
        stream.fork(pid * 65536 & 0xFFFFFFFF, 1).rss(pid * 65536 & 0xFFFFFFFF, SHMEM, pid)
        if pid % 3:
            stream.exit(pid * 65536 & 0xFFFFFFFF, 9)
    differ([stream.data], ask=True)


@pytest.mark.parametrize("path", sorted(DATA.glob("*.zst")), ids=lambda path: path.stem)
def test_recordings(path: Path) -> None:
    with Reader(path) as reader:
        frames = list(reader.frames())
    differ(frames, ask=True)
    plain, native = Timeline.of_header(reader.header), reducer.of_header(reader.header)
    for frame in frames:
        plain.feed(frame)
        native.feed(frame)
    assert isinstance(native, NativeTimeline)
    assert native.result() == plain.result()


def test_any_alignment() -> None:
    data = Stream().root(10, anon=MIB).rmap(10, ANON, 1, 0x1000).exit(10).data
    for shift in range(8):
        differ([memoryview(bytes(shift) + data)[shift:].tobytes()])
        native, plain = NativeTimeline(), Timeline()
        native.feed(memoryview(bytearray(shift) + data)[shift:])
        plain.feed(data)
        assert native.result() == plain.result()


def test_a_foreign_byte_order_is_read_in_python() -> None:
    found = reducer.make(byte_order=OTHER)
    assert isinstance(found, Timeline)
    assert isinstance(reducer.make(byte_order=NATIVE), NativeTimeline)
    found.feed(Stream(OTHER).root(10, anon=MIB).data)
    assert found.result().peak.rss_bytes == MIB


def test_whole_records_only() -> None:
    with pytest.raises(ValueError, match="49 bytes"):
        NativeTimeline().feed(bytes(49))


def test_several_threads_at_once_do_no_harm() -> None:
    native = NativeTimeline()
    data = Stream().root(10, anon=MIB).rss(10, ANON, 2 * MIB).data * 1000

    def work() -> None:
        for _ in range(20):
            native.feed(data)
            native.snapshot()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(native.result().events.values()) == 80 * len(data) // RECORD_BYTES


def test_without_the_extension_there_is_the_other() -> None:
    code = """
import sys
sys.modules["memtrack._native"] = None
from memtrack import reducer, timeline
assert isinstance(reducer.make(), timeline.Timeline)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_AS is kept by Linux")
def test_no_memory_is_an_error(tmp_path: Path) -> None:
    """Forks without end, in few bytes of a file, and an address space that cannot hold them."""
    forks = b"".join(events.encode(events.Fork(EventType.FORK, 1, pid, 1, 1, 0), NATIVE) for pid in range(1, 1 << 17))
    path = tmp_path / "forks.zst"
    path.write_bytes(recording(*[forks] * 4))
    code = f"""
import resource
from memtrack import reducer
from memtrack.tracefile import Reader
found = reducer.make()
with Reader({str(path)!r}) as reader:
    frames = list(reader.frames())
with open("/proc/self/statm") as file:
    size = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (64 << 20), resource.RLIM_INFINITY))
failed = 0
for frame in frames:
    try:
        found.feed(frame)
    except MemoryError:
        failed += 1
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert failed > 2, failed
print(len(found.snapshot()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10_000
