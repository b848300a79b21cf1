"""What some workloads need of the machine: set up for one run, and put back as it was.

Each is a context manager that yields values for the workload's arguments, and raises UnavailableError with the reason
where this machine cannot have it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

Values = Mapping[str, str]

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")
KSM = Path("/sys/kernel/mm/ksm")
# The kernel raises it whenever the use of huge pages is set: mm/khugepaged.c, set_recommended_min_free_kbytes().
MIN_FREE = Path("/proc/sys/vm/min_free_kbytes")
GUEST_SWAP = Path("/dev/vmtest-swap")  # see tests/vmtest/README.md
ZRAM_BYTES = 256 << 20  # more than any workload pages out, and nearly empty pages cost zram next to nothing
HUGETLB_BYTES = 96 << 20  # twice the workload's 32 MiB, for its copy, and the reserve of a private mapping
SMALL_MACHINE_BYTES = 4 << 30
KERNEL = Path("/proc/sys/kernel")
# What a process that does next to nothing costs the kernel: its stack (16 KiB), and task_struct, mm_struct, mappings,
# signal handlers, files and so on (24 KiB with 2 CPUs, 40 with the debugging of a distribution's kernel). And in pages:
# 11 of page tables, three of them for the stack at the far end of the address space, and 6 written since the fork.
PROCESS_BYTES = (16 + 40) << 10
PROCESS_PAGES = 11 + 6
SPARE_BYTES = 1 << 30  # for recorders, and for others
GROUP_BYTES = 64 << 20
TRIES_MAX = 20  # two seconds


class UnavailableError(Exception):
    """Why this machine cannot show a workload."""


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Settings are the machine's: two runs at once would each put back what the other had set."""
    with Path(tempfile.gettempdir(), "memtrack-tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(path: Path, value: str) -> None:
    try:
        path.write_text(value)
    except OSError as error:
        raise UnavailableError(f"cannot write {value} to {path}: {error.strerror}") from error


def _choice(path: Path) -> str:
    """The bracketed word of a file such as `always [madvise] never`."""
    text = path.read_text()
    return text[text.index("[") + 1 : text.index("]")]


@contextlib.contextmanager
def _settings(folder: Path, **wanted: str) -> Iterator[None]:
    """Files of /sys with these values, then with what they had before."""
    before: dict[Path, str] = {}
    try:
        for name, value in wanted.items():
            path = folder / name
            if not path.exists():
                raise UnavailableError(f"the kernel has no {path}")
            text = path.read_text()
            now = _choice(path) if "[" in text else text.strip()
            if now != value:
                before[path] = now
                _write(path, value)
        yield
    finally:
        for path, value in reversed(before.items()):
            path.write_text(value)


@contextlib.contextmanager
def _kept(path: Path) -> Iterator[None]:
    """A setting that others change, put back."""
    before = path.read_text()
    try:
        yield
    finally:
        if path.read_text() != before:
            path.write_text(before)


# --- swap -----------------------------------------------------------------------------------------------------------


def _system_call(name: str, path: Path, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(os.fsencode(path), *arguments):
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}", str(path))


def _swap_header(size_bytes: int) -> bytes:
    """What mkswap writes: union swap_header of include/linux/swap.h."""
    page_bytes = os.sysconf("SC_PAGESIZE")
    header = bytearray(page_bytes)
    struct.pack_into("=III", header, 1024, 1, size_bytes // page_bytes - 1, 0)
    header[-10:] = b"SWAPSPACE2"
    return bytes(header)


@contextlib.contextmanager
def _swapping(device: Path) -> Iterator[None]:
    try:
        _system_call("swapon", device, 0)
    except OSError as error:
        raise UnavailableError(f"cannot swap to {device}: {error.strerror}") from error
    try:
        yield
    finally:
        _persist(lambda: _system_call("swapoff", device))


def _load_module(name: str) -> None:
    """If it is one: what is built in needs no loading, nor a modprobe; what is absent is found out later."""
    with contextlib.suppress(FileNotFoundError):
        subprocess.run(["modprobe", "-q", name], check=False)


def _has_zram() -> bool:
    _load_module("zram")
    return Path("/sys/class/zram-control").exists()


def _unused_zram() -> str:
    if not _has_zram():
        raise UnavailableError("the kernel has no zram to swap to")
    for block in sorted(Path("/sys/block").glob("zram*")):
        if (block / "disksize").read_text().strip() == "0":
            return block.name
    return f"zram{Path('/sys/class/zram-control/hot_add').read_text().strip()}"


def _persist(action: Callable[[], None]) -> None:
    """For what the kernel finds busy until someone who has just ended is gone altogether."""
    for _ in range(TRIES_MAX):
        with contextlib.suppress(OSError):
            return action()
        time.sleep(0.1)
    return action()


def _size_zram(block: Path) -> None:
    """With the first compression that works: before 6.12 each is a module of its own, and the default may be absent."""
    offered = (block / "comp_algorithm").read_text()
    failure: UnavailableError | None = None
    for name in sorted(offered.split(), key=lambda name: not name.startswith("[")):
        _load_module(name.strip("[]"))
        try:
            _write(block / "comp_algorithm", name.strip("[]"))
            return _write(block / "disksize", str(ZRAM_BYTES))
        except UnavailableError as error:
            failure = error
            (block / "reset").write_text("1")
    raise failure or UnavailableError("zram knows no compression")


@contextlib.contextmanager
def swap() -> Iterator[Values]:
    """Swap space in compressed memory, or on the disc that a guest has for it."""
    if GUEST_SWAP.exists() and not _has_zram():
        with _swapping(GUEST_SWAP):
            yield {}
        return
    name = _unused_zram()
    device, block = Path("/dev", name), Path("/sys/block", name)
    _size_zram(block)
    try:
        device.write_bytes(_swap_header(ZRAM_BYTES))
        with _swapping(device):
            yield {}
    finally:
        (block / "reset").write_text("1")


@contextlib.contextmanager
def no_swap() -> Iterator[Values]:
    """Memory that has nowhere to go."""
    if len(Path("/proc/swaps").read_text().splitlines()) > 1:
        raise UnavailableError("the machine has swap space of its own")
    yield {}


@contextlib.contextmanager
def pressure() -> Iterator[Values]:
    """A machine small enough to be short of memory for a moment, and nobody else's: a guest."""
    meminfo = Path("/proc/meminfo").read_text().splitlines()
    (total_kib,) = (int(line.split()[1]) for line in meminfo if line.startswith("MemTotal"))
    if total_kib << 10 > SMALL_MACHINE_BYTES:
        raise UnavailableError(f"{total_kib >> 20} GiB of memory are too much to be short of")
    with swap(), _kept(MIN_FREE):
        yield {}


# --- pages ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def ksm() -> Iterator[Values]:
    """ksmd at work, in a hurry."""
    with _ksm(use_zero_pages="0"):
        yield {}


@contextlib.contextmanager
def ksm_zero_pages() -> Iterator[Values]:
    with _ksm(use_zero_pages="1"):
        yield {}


@contextlib.contextmanager
def _ksm(use_zero_pages: str) -> Iterator[None]:
    settings = {"use_zero_pages": use_zero_pages, "pages_to_scan": "20000", "sleep_millisecs": "10", "run": "1"}
    with _settings(KSM, **settings):
        try:
            yield
        finally:
            (KSM / "run").write_text("2")  # unmerges what is left


@contextlib.contextmanager
def huge_pages() -> Iterator[Values]:
    """Transparent huge pages for whoever asks."""
    if not (HUGE_PAGES / "enabled").exists():
        raise UnavailableError("the kernel has no transparent huge pages")
    wanted = "madvise" if _choice(HUGE_PAGES / "enabled") == "never" else _choice(HUGE_PAGES / "enabled")
    with _kept(MIN_FREE), _settings(HUGE_PAGES, enabled=wanted, defrag="madvise"):
        _write(Path("/proc/sys/vm/compact_memory"), "1")
        yield {}


@contextlib.contextmanager
def huge_shmem() -> Iterator[Values]:
    """The same for shared memory, which is off by default."""
    with huge_pages(), _settings(HUGE_PAGES, shmem_enabled="advise"):
        yield {}


@contextlib.contextmanager
def no_khugepaged() -> Iterator[Values]:
    """For every workload but those that wait for it: khugepaged may fill holes between any two quiet points."""
    if not (HUGE_PAGES / "khugepaged").exists():
        yield {}
        return
    with _settings(HUGE_PAGES / "khugepaged", scan_sleep_millisecs=str(2**32 - 1)):  # seven weeks
        yield {}


@contextlib.contextmanager
def khugepaged() -> Iterator[Values]:
    """khugepaged in a hurry; it looks at memory marked with MADV_HUGEPAGE only."""
    hurried = {"scan_sleep_millisecs": "10", "alloc_sleep_millisecs": "10", "pages_to_scan": "100000"}
    with (
        _kept(MIN_FREE),
        _settings(HUGE_PAGES, enabled="madvise"),
        _settings(HUGE_PAGES / "khugepaged", **hurried),
    ):
        yield {}


@contextlib.contextmanager
def hugetlb_pool() -> Iterator[Values]:
    default_kib = next(
        int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if "Hugepagesize" in line
    )
    pool = Path(f"/sys/kernel/mm/hugepages/hugepages-{default_kib}kB")
    wanted = -(-HUGETLB_BYTES // (default_kib << 10))
    with _settings(pool, nr_hugepages=str(wanted)):
        got = int((pool / "nr_hugepages").read_text())
        if got < wanted:
            raise UnavailableError(f"the kernel finds {got} huge pages of {wanted}")
        yield {}


# --- processes ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def many_processes(count: int) -> Iterator[Sequence[str]]:
    """Room for so many small processes at one time; yields what to put before the command that starts them."""
    needed = count * (PROCESS_BYTES + PROCESS_PAGES * os.sysconf("SC_PAGESIZE")) + SPARE_BYTES
    available = _meminfo()["MemAvailable"]
    if available < needed:
        raise UnavailableError(
            f"{count} processes take {needed >> 20} MiB of memory, and {available >> 20} MiB are available"
        )
    # A thousand, or whatever else runs.
    raised = {
        name: str(2 * count) for name in ("pid_max", "threads-max") if int((KERNEL / name).read_text()) < 2 * count
    }
    with _settings(KERNEL, **raised), _group_without_limit(count) as procs:
        yield [] if procs is None else ["/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', str(procs)]


@contextlib.contextmanager
def _group_without_limit(count: int) -> Iterator[Path | None]:
    """Sessions have limits of their own (systemd's TasksMax): the file that takes a process into a group of no such."""
    first, second = Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")
    if (first / "cgroup.procs").exists():
        parent = first
    elif "pids" in _controllers(second):
        parent = second
    else:
        yield None
        return
    limit = parent / "pids.max"  # of a container; the machine's own root has none
    if limit.exists() and limit.read_text().strip() != "max" and int(limit.read_text()) < 2 * count:
        raise UnavailableError(f"{limit} allows {limit.read_text().strip()} processes")
    group = parent / f"memtrack-{os.getpid()}"
    group.mkdir()
    try:
        yield group / "cgroup.procs"
    finally:
        _persist(group.rmdir)


def _meminfo() -> dict[str, int]:
    """In bytes."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) << 10 for words in lines if words[-1] == "kB"}


# --- cgroups --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def memory_group() -> Iterator[Values]:
    """A memory cgroup with a limit: its path, and the file and the value that make it give memory back."""
    first, second = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    if (first / "memory.limit_in_bytes").exists():
        parent, limit, reclaim = first, "memory.limit_in_bytes", ("memory.force_empty", "0")
    elif "memory" in _controllers(second):
        parent, limit, reclaim = second, "memory.max", ("memory.reclaim", str(GROUP_BYTES))
        _write(second / "cgroup.subtree_control", "+memory")
    else:
        raise UnavailableError("no memory cgroups are mounted")
    group = parent / f"memtrack-{os.getpid()}"
    group.mkdir()
    try:
        _write(group / limit, str(GROUP_BYTES))
        if not (group / reclaim[0]).exists():  # before 5.19; crossing the soft limit makes the writer reclaim
            reclaim = ("memory.high", str(GROUP_BYTES // 8))
        yield {"group": str(group), "reclaim_file": reclaim[0], "reclaim_value": reclaim[1]}
    finally:
        _persist(group.rmdir)


def _controllers(root: Path) -> list[str]:
    path = root / "cgroup.controllers"
    return path.read_text().split() if path.exists() else []


# --- files ----------------------------------------------------------------------------------------------------------

# Where a guest of the kernel matrix has its disc; its root is ramfs, which knows neither holes nor reclaim.
GUEST_DISC = Path("/mnt/ext4")
TMPFS_MAGIC = 0x01021994


@contextlib.contextmanager
def file_folder() -> Iterator[Path]:
    """A folder whose files' pages count as file."""
    chosen = os.environ.get("MEMTRACK_FILE_DIR")
    for candidate in [Path(chosen)] if chosen else [GUEST_DISC, Path("/var/tmp")]:
        if candidate.is_dir() and os.access(candidate, os.W_OK) and not _is_tmpfs(candidate):
            with tempfile.TemporaryDirectory(prefix="memtrack-", dir=candidate) as folder:
                yield Path(folder)
            return
    with tempfile.TemporaryDirectory(prefix="memtrack-") as folder:
        # Every kernel has it.
        subprocess.run(["mount", "-t", "ramfs", "memtrack", folder], check=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)


def _is_tmpfs(folder: Path) -> bool:
    """By statfs(2), whose first word is the type on every 64-bit architecture."""
    buffer = ctypes.create_string_buffer(256)
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.statfs(os.fsencode(folder), buffer) == 0 and struct.unpack_from("=q", buffer)[0] == TMPFS_MAGIC)


NEEDS: Mapping[str, Callable[[], contextlib.AbstractContextManager[Values]]] = {
    "huge pages": huge_pages,
    "huge shmem": huge_shmem,
    "hugetlb": hugetlb_pool,
    "khugepaged": khugepaged,
    "ksm": ksm,
    "ksm zero pages": ksm_zero_pages,
    "memory group": memory_group,
    "no swap": no_swap,
    "pressure": pressure,
    "swap": swap,
}
