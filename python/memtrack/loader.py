"""Loads the BPF object, as much of it as the kernel takes.

Every program's autoload is decided before load. What the kernel refuses all the same is left out, with whatever
depends on it, and the rest is loaded anew, so that no layer takes another down and nothing stays half attached.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import threading
import time
from dataclasses import dataclass
from importlib import resources

from memtrack import features, hooks
from memtrack._native import ffi, lib
from memtrack.detail import EVERY_EVENT, Detail
from memtrack.errors import FeatureError, LoadError
from memtrack.events import Member
from memtrack.facts import KernelFacts
from memtrack.hooks import Plan

CPUS_MAX = 4096
"""As in bpf/counters.bpf.h; a test compares the two."""

BUCKET_KEYS = 7
"""Address spaces in a bucket, as in bpf/maps.bpf.h; a test compares the two."""

MAX_PROCESSES = 8192
"""Processes of a tree at one time, by default. The tables of that size take 10 to 11 MiB."""

SHARERS = 8192
"""Of these how many at least may use the address space of another at one time (vfork, CLONE_VM)."""

MORE_PROCESSES = "raise max_processes, or --max-processes"

# Left free in a ring by RSS and RMAP for what says who is who and what each came to: 500 bytes for a process that ends.
HEADROOM_BYTES = 32 << 10

# Not attached: run once by learn_cpu_offsets' caller.
_RUN_ONCE = frozenset({"learn_cpu_offsets"})

_DOCTOR = "python -m memtrack doctor says what this kernel has"

# Not the kernel's word on a program: it would take it at another time.
_SHORTAGES = {
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "close files elsewhere, or raise fs.file-max",
    errno.ENOMEM: "free some memory, or raise the limits on it (ulimit -v, memory.max)",
}

# The kernel's own, in include/linux/errno.h, which no program should ever see: what arm64 says to fentry before 6.4.
_ENOTSUPP = 524

# A program and its link have one each, and so have maps, and what libbpf tries out: 90 with the rmap layer.
_DESCRIPTORS = 110

_FAILED_PROGRAM = re.compile(r"prog '(\w+)': (?:failed to load|BPF program load failed)")


@dataclass(frozen=True)
class Machine:
    """What the programs must know of the machine; the loader asks, tests may say."""

    page_bytes: int
    possible_cpus: int
    pid_ns_inode: int


def this_machine() -> Machine:
    cpus, inode = features.possible_cpus(), features.pid_namespace().inode
    if cpus is None:
        raise FeatureError("the number of possible CPUs is unknown", "mount /sys")
    if inode is None:
        raise FeatureError("the pid namespace of this process is unknown", "mount /proc")
    return Machine(features.page_bytes(), cpus, inode)


@dataclass(frozen=True)
class Tally:
    """What the programs counted; see struct tally in bpf/state.h."""

    lost_ring: int
    lost_lifecycle: int
    lost_told: int
    processes_full: int
    spaces_full: int
    sharers_full: int
    sums_unsettled: int
    bases_unsettled: int
    members: int
    adopted: int
    execs_missed: int
    migrations_missed: int
    put_off: int

    @property
    def left_out(self) -> int:
        """Processes and address spaces that were not taken in, or given up, for want of room."""
        return self.processes_full + self.spaces_full + self.sharers_full


@dataclass(frozen=True)
class TreeTotals:
    """What the kernel side keeps of the tree; pages by member, in the order of events.Member."""

    pages: tuple[int, ...]
    peak_pages: tuple[int, ...]
    """Parts of the largest sum of file, anon and shmem."""
    peak_at_ns: int
    """0: nothing has been held yet."""
    peak_processes: int


class Probes:
    """A loaded and attached BPF object. Closing it leaves nothing behind in the kernel."""

    def __init__(
        self,
        plan: Plan,
        machine: Machine,
        ring_bytes: int,
        detail: Detail = EVERY_EVENT,
        max_processes: int = MAX_PROCESSES,
    ) -> None:
        """Raises _RefusedError with the program that the kernel refused, or LoadError."""
        self.plan = plan
        # Few wake-ups, which the target pays for, and most of the ring for what comes while the consumer is on its way;
        # a small ring has room for one of the two only.
        self.ring_wakeup_bytes = max(ring_bytes // 16, min(ring_bytes // 2, 64 << 10))
        self.max_processes = max_processes
        self._round = 0
        self._controls = ffi.new("struct control *")
        self._controlling = threading.Lock()
        self._walking = threading.RLock()  # one walk at a time: the consumer syncs when others adopt
        self._skips_known = 0
        self._missed_while_attaching = 0
        self._exits_in_doubt = 0
        self._exits_missed = 0
        self._skipped_at_last: int | None = None
        # Closed with this object at the latest: an interrupt may come at any time from the next call on.
        self._handle = ffi.gc(ffi.new("struct probes **"), lib.probes__close)
        image = _object()
        error = lib.probes__open(self._handle, image, len(image))
        self._probes = self._handle[0]
        try:
            if error:
                raise LoadError(f"cannot parse the BPF object: {_message(error)}", "reinstall memtrack")
            self._load(machine, ring_bytes, detail)
            self._attach()
        except BaseException:
            self.close()
            raise

    def _load(self, machine: Machine, ring_bytes: int, detail: Detail) -> None:
        for program in self.plan.programs:
            _check(lib.probes__autoload(self._probes, program.encode()), f"select {program}")
        _check(lib.probes__resize(self._probes, b"ring", ring_bytes), "size the ring buffer")
        buckets = _bucket_count(self.max_processes)
        for name, entries in (
            ("processes", self.max_processes),
            ("buckets", buckets),
            ("spaces", buckets * BUCKET_KEYS),
            ("claims", buckets * BUCKET_KEYS),
            # A process is in it once at most: of those that use another's address space, for as long as they do.
            ("sharers", max(SHARERS, self.max_processes)),
            ("rmap_sums", buckets * BUCKET_KEYS if self.plan.rmap.tier else 1),
        ):
            _check(lib.probes__resize(self._probes, name.encode(), entries), f"size the map {name}")
        settings = ffi.new("struct settings *")
        settings.buckets = buckets
        settings.pid_ns_ino = machine.pid_ns_inode
        settings.initial_pid_ns = machine.pid_ns_inode == features.INITIAL_PID_NAMESPACE
        settings.ring_bytes = ring_bytes
        settings.ring_wakeup_bytes = self.ring_wakeup_bytes
        settings.ring_headroom_bytes = max(ring_bytes // 8, min(ring_bytes // 4, HEADROOM_BYTES))
        settings.cpus = machine.possible_cpus
        settings.page_shift = machine.page_bytes.bit_length() - 1
        settings.counters_are_percpu = self.plan.counters_are_percpu
        settings.file_rmap_nests = "page_add_file_rmap_exit" in self.plan.programs
        settings.rmap = self.plan.rmap.tier is not None
        settings.exec_prepared = hooks.EXEC_CHARGES in self.plan.programs
        settings.totals = self.keeps_totals
        settings.sums_known = not self.plan.counters_are_percpu or "learn_cpu_offsets" in self.plan.programs
        settings.every_event = detail.every_event
        settings.coarse = detail.coarse
        # Not less than a page: of what is smaller, every change is one.
        settings.resolution_pages = -(-(detail.resolution_bytes or 0) // machine.page_bytes)
        settings.resolution_ns = detail.resolution_ns or 0
        _check(lib.probes__settings(self._probes, settings), "set the BPF programs' settings")
        error = lib.probes__load(self._probes)
        if error:
            log = self.log
            failed = _FAILED_PROGRAM.search(log)
            if failed and (-error not in _SHORTAGES or self._can_do_without(failed[1])):
                raise _RefusedError(failed[1], _summary(log, error), log)
            raise _cannot_load(error, log)

    def _attach(self) -> None:
        for program in sorted(self.plan.programs, key=lambda name: ("_exit" not in name, name)):
            if program in _RUN_ONCE:
                result = lib.probes__run(self._probes, program.encode())
                if result:
                    reason = "a possible CPU has no per-CPU data" if result > 0 else _message(result)
                    raise _RefusedError(program, reason, self.log)
                continue
            error = lib.probes__attach(self._probes, program.encode())
            if error:
                raise self._refused(program, error)
        # An exit that is hooked before its entry says nothing.
        self._missed_while_attaching = self.tally().migrations_missed

    def _refused(self, program: str, error: int) -> _RefusedError | LoadError:
        if -error in _SHORTAGES and not self._can_do_without(program):
            return LoadError(f"cannot attach {program}: {_message(error)}", _SHORTAGES[-error])
        return _RefusedError(program, _message(error), self.log)

    def _can_do_without(self, program: str) -> bool:
        """Whether a shortage costs no more than the rmap layer, which must not take the rest down with it."""
        return any(program in choice.programs for choice in self.plan.families.values())

    def detach_all_but_iterators(self) -> None:
        """No hook of ours runs any more; tasks can still be walked."""
        self._skipped_at_last = self.skipped()  # nor does one that is hooked after its entry is no more
        for program in self.plan.programs - _RUN_ONCE - {"adopt_task"}:
            lib.probes__detach(self._probes, program.encode())

    @property
    def keeps_totals(self) -> bool:
        """Whether figures and peaks are kept in the kernel.

        Before Linux 6.2 tracing programs may not take a lock, and a peak is a sum of several counters at one instant.
        """
        return self.plan.rss.tier == "percpu"

    def tree(self) -> TreeTotals:
        """What the tree holds and held at most, in pages, at one instant."""
        figures = ffi.new("struct figures *")
        _check(lib.probes__figures(self._probes, figures), "read the tree's figures")
        pages, peak = tuple(figures.pages), figures.peak
        if sum(pages) - pages[Member.SWAP] > peak.sum_pages:  # a peak is noted when the sum falls, and it has not
            at_ns = int(figures.rose_ns) or time.monotonic_ns()
            return TreeTotals(pages, pages, at_ns, self.tally().members)
        return TreeTotals(pages, tuple(peak.pages), int(peak.at_ns), int(peak.processes))

    @property
    def log(self) -> str:
        """What libbpf and the verifier said."""
        text: bytes = ffi.string(lib.probes__log(self._probes))
        return text.decode("utf-8", "replace")

    @property
    def ring_fd(self) -> int:
        """The ring's map; owned by this object."""
        fd: int = lib.probes__map_fd(self._probes, b"ring")
        return fd

    def tally(self) -> Tally:
        tally = ffi.new("struct tally *")
        _check(lib.probes__tally(self._probes, tally), "read the BPF programs' counts")
        return Tally(*(int(getattr(tally, name)) for name in Tally.__dataclass_fields__))

    def skipped(self) -> int:
        """How often an event was missed because the kernel skipped all programs on it.

        The kernel skips a program that is running on that CPU already, and tells (recursion_misses of bpf_prog_info)
        since Linux 5.12; older ones do not count, so that it is 0 there.
        """
        if self._skipped_at_last is not None:
            return self._skipped_at_last
        with self._walking:
            skips = ffi.new("struct skips *")
            _check(lib.probes__skipped(self._probes, skips), "read the BPF programs' statistics")
            # Of programs that stand in for each other each may have missed something that another saw.
            tally = self.tally()
            execs = min(tally.execs_missed, int(skips.execs_at_most))
            if int(skips.exits_at_most) > self._exits_in_doubt:
                self._exits_in_doubt = int(skips.exits_at_most)
                self._exits_missed = max(self._exits_missed, min(self._unseen(), self._exits_in_doubt))
        return int(skips.others) + execs + self._exits_missed + tally.migrations_missed - self._missed_while_attaching

    def _unseen(self) -> int:
        """How many processes of the tree are no more, though nobody has seen their exit."""
        self._round += 1
        self._walk(lib.ADOPT_SEEN, round=self._round)
        count = ffi.new("uint64_t *")
        _check(lib.probes__unseen(self._probes, self._round, count), "look for processes that are no more")
        return int(count[0])

    def set_spawner(self, tid: int) -> None:
        """The next child of this thread, as the recorder's namespace numbers it, is a root of the tree; 0 for none."""
        self._control(spawner_tid=tid)

    def adopt(self, pid: int) -> int:
        """Takes in a running process and its descendants, and returns how many processes that were."""
        with self._walking:
            before = self.tally()
            self._walk(lib.ADOPT_PID, adopt_pid=pid)
            if self.tally().adopted == before.adopted:
                if self.tally().put_off != before.put_off:
                    raise LoadError(f"cannot adopt process {pid}: {self.max_processes} are the most", MORE_PROCESSES)
                return 0
            self.adopt_children()
            self.sync()
            return self.tally().adopted - before.adopted

    def adopt_children(self) -> bool:
        """Takes in all descendants of members that do not belong to the tree. Returns whether there was room."""
        with self._walking:
            before, adopted = self.tally(), -1
            while (tally := self.tally()).adopted != adopted and tally.put_off == before.put_off:
                adopted = tally.adopted
                self._walk(lib.ADOPT_CHILDREN)
            return tally.put_off == before.put_off

    def sync(self, *, last: bool = False) -> bool:
        """Has the kernel report the figures of every address space of the tree; from any thread.

        The peaks too where the records do not tell them; `last` says that these are what each has come to. Returns
        whether all of it went into the ring: where not, drain it and call sync_on.
        """
        with self._walking:
            self._round += 1
            skipped = self.skipped()
            if not self.plan.counters_are_percpu:
                self._walk(lib.ADOPT_CACHES, round=self._round)
            # A program that was skipped has not seen a change that a sum of changes should have.
            self._control(recount=skipped != self._skips_known)
            self._skips_known = skipped
            return self.sync_on(last=last)

    def sync_on(self, *, last: bool = False) -> bool:
        """Goes on with what the ring had no room for at the last sync."""
        with self._walking:
            before = self.tally().put_off
            self._walk(lib.ADOPT_LAST if last else lib.ADOPT_SYNC, round=self._round)
            return self.tally().put_off == before

    def _walk(self, adopt_pass: int, **values: int) -> None:
        if "adopt_task" not in self.plan.programs:
            return
        self._control(**{"pass": adopt_pass}, **values)
        _check(lib.probes__iterate(self._probes, b"adopt_task"), "walk the tasks")

    def _control(self, **values: int) -> None:
        """Changes these and leaves the rest: a walk must not disarm a thread that is about to spawn."""
        with self._controlling:
            for name, value in values.items():
                setattr(self._controls, name, value)
            _check(lib.probes__control(self._probes, self._controls), "reach the BPF programs")

    def close(self) -> None:
        self._probes = ffi.NULL
        ffi.release(self._handle)


class _RefusedError(Exception):
    def __init__(self, program: str, reason: str, log: str) -> None:
        super().__init__(program, reason)
        self.program = program
        self.reason = reason
        self.log = log


def load(
    facts: KernelFacts,
    *,
    rmap: bool,
    ring_bytes: int,
    detail: Detail = EVERY_EVENT,
    max_processes: int = MAX_PROCESSES,
    machine: Machine | None = None,
) -> Probes:
    """Loads and attaches what this kernel takes; `plan` of the result says what that is, and why not more.

    Raises FeatureError where nothing could be recorded at all, LoadError where it is not one program's fault.
    """
    machine = machine or this_machine()
    refused: dict[str, str] = {}
    _check_descriptors()
    if machine.possible_cpus > CPUS_MAX:
        refused["learn_cpu_offsets"] = f"more than {CPUS_MAX} possible CPUs"
    while True:
        plan = hooks.choose(facts, rmap, refused)
        if facts.problem:
            raise FeatureError(f"nothing can be recorded: {facts.problem}", features.btf().remedy or _DOCTOR)
        if not detail.every_event and plan.rss.tier != "percpu":
            raise FeatureError(
                f"this kernel cannot keep totals: {plan.rss.reason or 'its counters are no per-CPU counters'}",
                "record every event; totals need Linux 6.2 or later",
            )
        if not plan.programs:
            reason = plan.rss.reason or plan.lifecycle.reason
            raise FeatureError(f"nothing can be recorded: {reason}", _remedy_for_refusal() if refused else _DOCTOR)
        try:
            return Probes(plan, machine, ring_bytes, detail, max_processes)
        except _RefusedError as refusal:
            if refusal.program in refused:
                raise LoadError(f"cannot load {refusal.program}: {refusal.reason}") from None
            refused[refusal.program] = refusal.reason


def _bucket_count(max_processes: int) -> int:
    """Buckets for so many address spaces: half full at most, so that hardly a key has to look further than its own."""
    return 1 << (-(-2 * max_processes // BUCKET_KEYS) - 1).bit_length()


def _check_descriptors() -> None:
    """Without enough of them libbpf finds features missing, and never asks again in this process."""
    opened = []
    try:
        for _ in range(_DESCRIPTORS):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        code = error.errno or errno.EMFILE
        raise LoadError(f"cannot load BPF object: {_message(code)}", _SHORTAGES.get(code)) from error
    finally:
        for fd in opened:
            os.close(fd)


def _object() -> bytes:
    image = resources.files("memtrack").joinpath("rss.bpf.o").read_bytes()
    expected: bytes = ffi.string(lib.memtrack_object_sha256)
    if hashlib.sha256(image).hexdigest() != expected.decode():
        raise LoadError("the BPF object is not the one this build made", "reinstall memtrack")
    return image


def _summary(log: str, error: int) -> str:
    """The verifier's last word on the program, or the errno where it said nothing."""
    lines = [line.strip() for line in log.splitlines()]
    for index, line in enumerate(lines):
        if line.startswith("processed ") and index and not lines[index - 1].startswith("-- BEGIN"):
            return f"{_message(error)}: {lines[index - 1]}"
    return _message(error)


def _cannot_load(error: int, log: str) -> LoadError:
    cause = f"cannot load BPF object: {_message(error)}"
    if -error in (errno.EPERM, errno.EACCES):
        return LoadError(cause, _remedy_for_refusal())
    if -error in _SHORTAGES:
        return LoadError(cause, _SHORTAGES[-error])
    last = next((line for line in reversed(log.splitlines()) if line.startswith("libbpf: ")), "")
    return LoadError(f"{cause}: {last.removeprefix('libbpf: ')}" if last else cause)


def _remedy_for_refusal() -> str:
    """What to do where the kernel says no and not why: whatever is known to stand in the way."""
    for finding in (*features.capabilities(), features.lockdown()):
        if finding.answer is features.Answer.NO and finding.remedy:
            return finding.remedy
    return _DOCTOR


def _message(error: int) -> str:
    if abs(error) == _ENOTSUPP:
        return "operation not supported"
    return os.strerror(abs(error)).lower()


def _check(error: int, action: str) -> None:
    if error < 0:
        raise LoadError(f"cannot {action}: {_message(error)}")
