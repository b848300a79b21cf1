"""What a recording must say beyond the figures at quiet points. Each check yields what is wrong."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from memtrack.events import Event, EventType, Figure, Fork, Member, Rmap
from memtrack.recording import Recording
from memtrack.timeline import Peak, Process
from tests.bpf.drivers import Session
from tests.bpf.points import Note, Report
from tests.bpf.replay import RMAP, RSS, bound_pages

MIB = 1 << 20

# In the rmap layer a page that replaces another of its kind (copy on write of anonymous memory, KSM) is added before
# the other is removed, without a move of the counters to tell it by: a peak may be too high by one for each task at it.
REPLACED_PAGES = 1

KERNEL_LOG_RECORD_BYTES = 8192  # more than one record has

ODD_NAME = b"h\xffl\xfed\n"
ODD_ARGUMENT = b"two\nlines, \xc3\x28 and a \t tab"


@dataclass(frozen=True)
class Run:
    """A workload's run, recorded and read back."""

    recording: Recording
    report: Report
    session: Session
    exact: Sequence[str]
    """The layers that were recorded and that the kernel keeps exactly."""

    @cached_property
    def events(self) -> list[Event]:
        return list(self.recording.events())

    @property
    def page_bytes(self) -> int:
        return self.recording.page_size

    @property
    def has_rmap(self) -> bool:
        return RMAP in self.exact

    def peaks(self, of: Process | Recording) -> Iterator[tuple[str, Peak]]:
        """In the layers that are exact."""
        for layer, peak in ((RSS, of.peak), (RMAP, of.rmap_peak)):
            if layer in self.exact and peak is not None:
                yield layer, peak

    def process(self, pid: int) -> Process:
        (found,) = (process for process in self.recording.processes if process.pid == pid)
        return found

    def between(self, first: Note, second: Note) -> list[Event]:
        return [event for event in self.events if first.ns < event.time_ns < second.ns]


Check = Callable[[Run], Iterator[str]]


def huge_steps(run: Run) -> Iterator[str]:
    """Huge pages come and go in one step each."""
    size = _huge_page_bytes() // run.page_bytes
    steps = {event.delta_pages for event in run.events if isinstance(event, Rmap)}
    if run.has_rmap and not {size, -size} <= steps:
        yield f"there is no step of +{size} and -{size} pages in the rmap layer"


def no_phantom(run: Run) -> Iterator[str]:
    """No peak in either layer exceeds the largest sum at a quiet point: nothing but splits happens between them."""
    pid = run.report.points[0].pid
    process = run.process(pid)
    largest = max(point.rss for point in run.report.points) * run.page_bytes
    for layer, peak in run.peaks(process):
        if peak.rss_bytes != largest:
            yield f"the {layer} peak is {peak.rss_bytes} bytes, the largest sum at a quiet point {largest}"


def _huge_page_bytes() -> int:
    return int(Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").read_text())


def hole_named(run: Run) -> Iterator[str]:
    """Events name the pages of the hole, both when it is made and when it is filled."""
    if not run.has_rmap:
        return
    for name, sign in (("hole unmapped", -1), ("hole refaulted", 1)):
        note = run.report.note(name)
        end = min(point.from_ns for point in run.report.points if point.from_ns > note.ns)
        hole = range(note.address, note.address + note.pages * run.page_bytes)
        found = [
            event
            for event in run.events
            if isinstance(event, Rmap) and note.ns < event.time_ns < end and event.pid == note.pid
        ]
        inside = sum(event.delta_pages for event in found if event.addr in hole)
        if inside != sign * note.pages:
            yield f"{name}: {inside:+} pages at addresses of the hole, not {sign * note.pages:+}"


def holder_undisturbed(run: Run) -> Iterator[str]:
    """At no event is the holder below what it holds, in either layer."""
    first, second = run.report.note("holding"), run.report.note("held")
    floor = first.pages * run.page_bytes
    rss: dict[int, int] = {}
    rmap: dict[int, int] = {}
    for event in run.events:
        if event.pid != first.pid:
            continue
        if isinstance(event, Figure):
            rss[event.member] = event.size_bytes
            if event.type is EventType.SYNC:
                rmap[event.member] = event.size_bytes
        elif isinstance(event, Rmap):
            rmap[event.member] = rmap.get(event.member, 0) + event.delta_pages * run.page_bytes
        if first.ns < event.time_ns < second.ns:
            for layer, sizes in ((RSS, rss), (RMAP, rmap)):
                held = sum(size for member, size in sizes.items() if member != Member.SWAP)
                if held < floor and layer in run.exact:
                    yield f"{layer} says {held} bytes of the holder, which has {floor}"
                    return
    forks = sum(isinstance(event, Fork) for event in run.events)
    if forks < 256:
        yield f"{forks} forks were recorded, not 256"


def acted_by_child(run: Run) -> Iterator[str]:
    """While the child works on its sleeping parent, all events of the parent's memory are the child's doing."""
    first, second = run.report.note("acted on by"), run.report.note("acted")
    parent = next(point.pid for point in run.report.points)
    memory = [
        event
        for event in run.between(first, second)
        if event.pid == parent and isinstance(event, (Figure, Rmap)) and event.type is not EventType.SYNC
    ]
    others = {event.tid for event in memory} - {first.pid}
    if not memory:
        yield "nothing of what the child did to its parent was recorded"
    if others:
        yield f"tasks {sorted(others)} acted on the parent, not only its child {first.pid}"


def acted_by_the_kernel(run: Run) -> Iterator[str]:
    """What was taken from the sleeping process was taken by a task that is none of the tree's."""
    first, second = run.report.note("pressed by"), run.report.note("pressed")
    owner = run.report.points[0].pid
    tids = {event.tid for event in run.between(first, second) if event.pid == owner}
    if not tids - {owner, first.pid}:
        yield f"tasks {sorted(tids)} acted on the process, not kswapd"


def one_exit(run: Run) -> Iterator[str]:
    """The process ends with its last thread, once, and holds until then what its last point says."""
    note = run.report.note("exit")
    exits = [event for event in run.events if event.type is EventType.EXIT and event.pid == note.pid]
    if len(exits) != 1:
        yield f"process {note.pid} has {len(exits)} ends"
    elif exits[0].time_ns < note.ns:
        yield "the process ended before its last point"


def nothing_passed_on(run: Run) -> Iterator[str]:
    """A spawned process has from its exec on what it reports itself, though whoever spawned it ended before.

    Exec lets the other go on some instructions before it puts the new address space in place. If it ends within those,
    what it had belongs to nobody but the spawned process for that moment, and is a peak of it. That needs an interrupt
    at the right instant: it may happen to one of the ten, and to more than half of them only if it is our mistake.
    """
    held = [point for point in run.report.points if point.name == "held"]
    passed_on = dict.fromkeys(run.exact, 0)
    for point in held:
        largest = _largest_since_exec(run, point.pid)
        for layer, peak in run.peaks(run.process(point.pid)):
            room = REPLACED_PAGES * run.page_bytes if layer == RMAP else 0
            if not 0 <= largest[layer] - point.rss * run.page_bytes <= room:
                yield f"{point.pid} holds {point.rss} pages, and {largest[layer]} bytes by {layer} since its exec"
            passed_on[layer] += (peak.rss_bytes or 0) > largest[layer]
    for layer, count in passed_on.items():
        if 2 * count > len(held):
            yield f"{count} of {len(held)} spawned processes have a peak from before their exec in the {layer} layer"


def _largest_since_exec(run: Run, pid: int) -> dict[str, int]:
    """The largest sum of what is resident in each layer."""
    sums: dict[str, dict[int, int]] = {RSS: {}, RMAP: {}}
    largest = {RSS: 0, RMAP: 0}
    for event in run.events:
        if event.pid != pid:
            continue
        if event.type is EventType.EXEC:
            sums = {RSS: {}, RMAP: {}}
            largest = {RSS: 0, RMAP: 0}
        elif isinstance(event, Figure):
            sums[RSS][event.member] = event.size_bytes
            if event.type is EventType.SYNC:
                sums[RMAP][event.member] = event.size_bytes
        elif isinstance(event, Rmap):
            sums[RMAP][event.member] = sums[RMAP].get(event.member, 0) + event.delta_pages * run.page_bytes
        for layer, sizes in sums.items():
            if len(sizes) == len(Member):  # an exec tells all four
                largest[layer] = max(largest[layer], sum(sizes.values()) - sizes[Member.SWAP])
    return largest


def exec_recorded(run: Run) -> Iterator[str]:
    """The process that became another program keeps its pid, and has that program's name."""
    (held,) = run.report.named("held")
    process = run.process(held.pid)
    if process.comm != "hold":
        yield f"process {held.pid} is called {process.comm!r} after exec"


def forks_met_entries(run: Run) -> Iterator[str]:
    """By the kernel's own counts a fork copied migration entries. Kernels with the rmap layer have these counts."""
    copied = [note.pages for note in run.report.notes if note.name == "entries copied"]
    if run.has_rmap and not any(pages > 0 for pages in copied):
        yield f"it is not known that a fork met pages on the move: {copied}"


def tree_stays_small(run: Run) -> Iterator[str]:
    """A spawner's memory counts once, although its children run in it until they exec."""
    (holding,) = run.report.named("holding")
    command = max(point.rss for point in run.report.named("held"))
    # The spawner may touch a little more on the way: a stack for its child, at most.
    limit = (holding.rss + command) * run.page_bytes + MIB
    for layer, peak in run.peaks(run.recording):
        if peak.rss_bytes is None or peak.rss_bytes > limit:
            yield f"the tree's {layer} peak is {peak.rss_bytes} bytes, more than {limit}"


def tree_peak(run: Run) -> Iterator[str]:
    """The tree's peak is the sum over all its sleeping processes; but see REPLACED_PAGES."""
    wanted = run.report.note("tree peak").pages
    for layer, peak in run.peaks(run.recording):
        more = (peak.rss_bytes or 0) // run.page_bytes - wanted
        if not 0 <= more <= (REPLACED_PAGES if layer == RMAP else 0):
            yield f"the tree's {layer} peak is {more:+} pages off the sum"
    if run.recording.peak.processes != 6:
        yield f"{run.recording.peak.processes} processes are counted at the peak, not 6"


def daemon_followed(run: Run) -> Iterator[str]:
    note = run.report.note("daemon")
    process = run.process(note.pid)
    if process.state != "ended":
        yield f"the daemon's end is {process.state}"
    if process.ppid in (None, 1):
        yield f"the daemon is shown as a child of {process.ppid}, not of who forked it"


def short_life(run: Run) -> Iterator[str]:
    note = run.report.note("anon peak")
    process = run.process(note.pid)
    for layer, peak in run.peaks(process):
        if peak.anon_bytes != note.pages * run.page_bytes:
            yield f"its {layer} peak has {peak.anon_bytes} anon bytes, not {note.pages * run.page_bytes}"


def two_of_one_pid(run: Run) -> Iterator[str]:
    ((first,), (second,)) = (run.report.named("first held"), run.report.named("second held"))
    processes = [process for process in run.recording.processes if process.pid == first.pid]
    found = [process.peak.anon_bytes for process in processes]
    wanted = [point.anon * run.page_bytes for point in (first, second)]
    if len(processes) != 2:
        yield f"there are {len(processes)} processes of pid {first.pid}"
    elif found != wanted:
        yield f"their peaks are {found}, not {wanted}"


def killed(run: Run) -> Iterator[str]:
    """The process that ran out of memory is shown up to its end: at the limit, but for what the group holds besides."""
    note = run.report.note("killed")
    process = run.process(note.pid)
    if process.signal != 9 or process.state != "ended":
        yield f"the process ended as {process.state} by signal {process.signal}"
    floor, limit = note.pages * run.page_bytes, 64 * MIB
    if process.last.rss_bytes is None or not floor < process.last.rss_bytes <= process.peak.rss_bytes:  # type: ignore[operator]
        yield f"it held {process.last.rss_bytes} bytes at its end, {floor} at its last point"
    # What it shares with its parent (its program, what the fork copied) is not charged to its group.
    shared = max(point.rss for point in run.report.named("base")) * run.page_bytes
    if process.peak.rss_bytes is None or process.peak.rss_bytes > limit + shared:
        yield f"its peak is {process.peak.rss_bytes} bytes, more than its group may have"
    yield from _as_the_kernel_says(run, process)
    if run.recording.processes_left:
        yield f"{run.recording.processes_left} processes are left"


def _as_the_kernel_says(run: Run, process: Process) -> Iterator[str]:
    """What the kernel says that it held when it was killed, which is its peak: nothing of it came or went afterwards.

    But for one page: kernels before 5.17 let who has been killed have the page that it was about to get. The kernel
    reads its counters as they are, without what CPUs or, before 6.2, threads keep.
    """
    said = _killed_in_kernel_log(process.pid)
    if said is None:
        yield f"the kernel's log does not say that {process.pid} was killed"
        return
    (point,) = run.report.named("within the limit")
    processors = os.cpu_count() or 1
    kept = 0 if RSS not in run.exact else max(32, 2 * processors) * processors  # lib/percpu_counter.c
    for layer, peak in run.peaks(process):
        for member, said_bytes in said.items():
            bound = (kept or bound_pages(point, member, cached=True)) + 1
            off = getattr(peak, f"{member}_bytes") // run.page_bytes - said_bytes // run.page_bytes
            if abs(off) > bound:
                yield f"{layer} {member} is {off:+} pages off what the kernel says at its end (bound {bound})"
    if run.exact == [RSS, RMAP]:
        for first, second in ((process.last, process.rmap_last), (process.peak, process.rmap_peak)):
            for member in said:
                one, other = (getattr(figures, f"{member}_bytes") for figures in (first, second))
                if one != other:
                    yield f"the layers differ in {member}: {one} and {other} bytes"


def _killed_in_kernel_log(pid: int) -> dict[str, int] | None:
    """By member, in bytes; mm/oom_kill.c, __oom_kill_process(). The last of this pid."""
    found = None
    with open("/dev/kmsg", "rb", buffering=0, opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as log:
        while True:
            try:
                record = log.read(KERNEL_LOG_RECORD_BYTES)
            except BrokenPipeError:  # overwritten meanwhile: the next one is the oldest that is left
                continue
            if not record:
                return found
            if f"Killed process {pid} (".encode() in record:
                sizes = re.findall(rb"(anon|file|shmem)-rss:(\d+)kB", record)
                found = {member.decode(): int(kib) << 10 for member, kib in sizes}


def no_strangers(run: Run) -> Iterator[str]:
    """Nothing of the neighbours is in the recording."""
    seen = {event.pid for event in run.events} & set(run.session.strangers)
    acting = {event.tid for event in run.events} & set(run.session.strangers)
    if not run.session.strangers:
        yield "there were no neighbours"
    if seen or acting:
        yield f"untracked processes {sorted(seen | acting)} are in the recording"


def names_kept(run: Run) -> Iterator[str]:
    """Bytes survive as they are, also through JSON."""
    (process,) = run.recording.processes
    if os.fsencode(process.comm) != ODD_NAME:
        yield f"the process is called {process.comm!r}"
    if os.fsencode(run.recording.command[-1]) != ODD_ARGUMENT:
        yield f"the last argument is {run.recording.command[-1]!r}"
    report = json.loads(json.dumps(run.recording.report()))
    if os.fsencode(report["command"][-1]) != ODD_ARGUMENT or os.fsencode(report["processes"][0]["comm"]) != ODD_NAME:
        yield "the names do not survive JSON"


def own_size_only(run: Run) -> Iterator[str]:
    """The spawner's memory is no part of the command's, not even before its exec."""
    (held,) = run.report.named("held")
    process = run.process(held.pid)
    for layer, peak in run.peaks(process):
        if peak.rss_bytes != held.rss * run.page_bytes:
            yield f"the {layer} peak is {peak.rss_bytes} bytes, not {held.rss * run.page_bytes}"


def adopted_at_once(run: Run) -> Iterator[str]:
    """The first figures of each adopted process are what it held when it was taken in."""
    for name in ("unwatched, with a thread", "unwatched child"):
        (point,) = run.report.named(name)
        first = {
            event.member: event.size_bytes
            for event in reversed(run.events)
            if isinstance(event, Figure) and event.type is EventType.SYNC and event.pid == point.pid
        }
        for member in Member:
            wanted = point.figure(member.name.lower()) * run.page_bytes
            if first.get(member) != wanted:
                yield f"process {point.pid} starts with {first.get(member)} bytes of {member.name}, not {wanted}"


def accounted_for(run: Run) -> Iterator[str]:
    """Every process that the oracle saw is there, with its status and what it held when it gave up its memory.

    The oracle is the first process of its tree. A process that never had memory of its own holds nothing.
    """
    processes = {process.pid: process for process in run.recording.processes[1:]}
    ends = {note.pid: note.address for note in run.report.notes if note.name == "ended"}
    if len(processes) != len(run.recording.processes) - 1 or len(ends) != len(run.report.notes):
        return  # a pid was used twice: which of the two a point is of cannot be told here, but has been compared
    for pid in processes.keys() ^ ends.keys():
        yield f"process {pid} is known to {'the oracle' if pid in ends else 'the recording'} alone"
    final = {point.pid: point for point in run.report.points if point.name == "before exit"}
    for pid in processes.keys() & ends.keys():
        process, status = processes[pid], ends[pid]
        if (process.exit_code or 0) << 8 | (process.signal or 0) != status & 0xFF7F:
            yield f"process {pid} ended with {process.exit_code} or signal {process.signal}, not status {status:#x}"
        if pid in final and process.last.rss_bytes != final[pid].rss * run.page_bytes:
            yield f"process {pid} held {process.last.rss_bytes} bytes at its end, not {final[pid].rss * run.page_bytes}"
    memory = os.sysconf("SC_PHYS_PAGES") * run.page_bytes
    for process in run.recording.processes:
        if (process.peak.rss_bytes or 0) > memory:
            yield f"process {process.pid} is said to have held more than the machine has"
