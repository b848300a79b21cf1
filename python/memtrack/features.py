"""Probes: what this kernel has and what it lets this process do, each answered yes, no or could not tell.

A probe answers from what it could see, never from a kernel's version; a refusal for want of privileges is no answer.
Each carries a remedy for a "no", so that whoever prints it can say what to do. Only `probe`, `try_fentry` and
`try_tp_btf` need the native extension; nothing here needs root, it only sees more as root.
"""

from __future__ import annotations

import errno
import importlib
import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from memtrack.errors import LoadError
from memtrack.facts import KernelFacts
from memtrack.hooks import FUNCTIONS, MEMBERS, TRACEPOINTS
from memtrack.rmap_hooks import changes_rmap

__all__ = [
    "KALLSYMS",
    "Answer",
    "Finding",
    "KernelFacts",
    "PidNamespace",
    "btf",
    "capabilities",
    "environment",
    "lockdown",
    "memlock",
    "page_bytes",
    "pid_namespace",
    "possible_cpus",
    "probe",
    "tracefs",
    "try_fentry",
    "try_tp_btf",
    "unprivileged_bpf",
]

PROC = Path("/proc")
KALLSYMS = PROC / "kallsyms"
SYS = Path("/sys")

# include/uapi/linux/capability.h
CAPABILITIES = {"CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38, "CAP_BPF": 39}
# PROC_PID_INIT_INO in include/linux/proc_fs.h (include/uapi/linux/nsfs.h from v6.18 on): the initial pid namespace.
INITIAL_PID_NAMESPACE = 0xEFFFFFFC
# Room for the longest answer there is: the names of all rmap functions of a kernel take some 600 bytes.
TEXT_BYTES = 16 * 1024


class Answer(Enum):
    """What a probe found."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "could not tell"


@dataclass(frozen=True)
class Finding:
    """The answer of one probe."""

    subject: str
    answer: Answer
    detail: str
    remedy: str | None = None
    """What to do about a "no", or to get an answer."""


# --- the kernel's BTF -----------------------------------------------------------------------------------------------


def probe(btf_path: str | os.PathLike[str] | None = None, kallsyms: Path | None = None) -> KernelFacts:
    """Ask the running kernel's BTF, or a BTF or ELF file, everything that `hooks.choose` wants to know.

    Whoever wants the rmap layer gives `KALLSYMS` too, which takes a tenth of a second to read. It never raises for what
    a kernel lacks: that no BTF can be read is `KernelFacts.problem`.
    """
    try:
        with _open_btf(btf_path) as kernel:
            return KernelFacts(
                functions={
                    name: params
                    for name in sorted(_function_names(kernel))
                    if (params := kernel.func(name)) is not None
                },
                tracepoints={
                    name: types for name in sorted(TRACEPOINTS) if (types := kernel.tracepoint(name)) is not None
                },
                members={name: kind for name in sorted(MEMBERS) if (kind := kernel.member(name)) is not None},
                clones=_clones(kallsyms) if kallsyms else frozenset(),
            )
    except OSError as error:
        what = "the kernel's BTF" if btf_path is None else f"BTF from {os.fspath(btf_path)}"
        return KernelFacts(problem=f"cannot read {what}: {_reason(error)}")
    except LoadError as error:
        return KernelFacts(problem=str(error))


def _function_names(kernel: _KernelBtf) -> set[str]:
    families = (kernel.functions(prefix, "rmap") for prefix in ("folio_", "page_"))
    return {*FUNCTIONS, *(name for names in families for name in names if changes_rmap(name))}


def _clones(kallsyms: Path) -> frozenset[str]:
    text = _try_read(kallsyms, -1)
    # Those that begin in a function, and not the unlikely rest of one that GCC moves away (.cold).
    found = re.findall(rb" [tT] (\w+_rmap\w*\.(?!cold)\S+)", text) if isinstance(text, bytes) else []
    return frozenset(name for name in map(bytes.decode, found) if name.partition(".")[0] in FUNCTIONS)


class _KernelBtf:
    """The native side's answers as Python values; None for what the kernel does not have."""

    def __init__(self, native: Any, handle: Any) -> None:
        self._native = native
        self._handle = handle
        self._text = native.ffi.new("char[]", TEXT_BYTES)

    def functions(self, prefix: str, part: str) -> tuple[str, ...]:
        lib = self._native.lib
        return self._listed(
            lib.kernel_btf__functions(self._handle, prefix.encode(), part.encode(), self._text, TEXT_BYTES)
        )

    def func(self, name: str) -> tuple[str, ...] | None:
        lib = self._native.lib
        return self._known(lib.kernel_btf__func(self._handle, name.encode(), self._text, TEXT_BYTES))

    def tracepoint(self, name: str) -> tuple[str, ...] | None:
        lib = self._native.lib
        return self._known(lib.kernel_btf__tracepoint(self._handle, name.encode(), self._text, TEXT_BYTES))

    def member(self, qualified: str) -> str | None:
        struct, _, name = qualified.partition(".")
        lib = self._native.lib
        result = lib.kernel_btf__member(self._handle, struct.encode(), name.encode(), self._text, TEXT_BYTES)
        if result == -errno.ENOENT:
            return None
        _check(result)
        return self._string()

    def try_fentry(self, function: str) -> int:
        return int(self._native.lib.kernel_btf__try_fentry(self._handle, function.encode()))

    def try_tp_btf(self, tracepoint: str) -> int:
        return int(self._native.lib.kernel_btf__try_tp_btf(self._handle, tracepoint.encode()))

    def _known(self, result: int) -> tuple[str, ...] | None:
        return None if result == -errno.ENOENT else self._listed(result)

    def _listed(self, result: int) -> tuple[str, ...]:
        _check(result)
        return tuple(self._string().split(",")) if result else ()

    def _string(self) -> str:
        data: bytes = self._native.ffi.string(self._text)
        return data.decode(errors="backslashreplace")


@contextmanager
def _open_btf(path: str | os.PathLike[str] | None) -> Iterator[_KernelBtf]:
    native = _load_native()
    error = native.ffi.new("int *")
    handle = native.lib.kernel_btf__open(native.ffi.NULL if path is None else os.fsencode(path), error)
    if handle == native.ffi.NULL:
        _check(error[0])
    try:
        yield _KernelBtf(native, handle)
    finally:
        native.lib.kernel_btf__close(handle)


def _load_native() -> Any:
    try:
        return importlib.import_module("memtrack._native")
    except ImportError as error:
        raise LoadError(
            f"the native extension cannot be loaded: {error}", "install memtrack from a wheel for this machine"
        ) from error


def _check(result: int) -> None:
    if result < 0:
        raise OSError(-result, os.strerror(-result))


def _reason(error: OSError) -> str:
    # What libbpf says when none of the places that it knows has any.
    if error.errno == errno.ESRCH:
        return "there is none"
    return (error.strerror or str(error)).lower()


# --- trying ---------------------------------------------------------------------------------------------------------

_ANY_TRACEPOINT = "sched_process_exit"
# No kernel lacks it, and no compiler inlines it.
_ANY_FUNCTION = "do_exit"


def try_tp_btf(tracepoint: str = _ANY_TRACEPOINT) -> Finding:
    """Whether the kernel takes a program on a tracepoint (tp_btf), found by loading and attaching an empty one."""
    try:
        with _open_btf(None) as kernel:
            result = kernel.try_tp_btf(tracepoint)
    except OSError as error:
        return Finding("tp_btf", Answer.UNKNOWN, f"cannot read the kernel's BTF: {_reason(error)}", _BTF_REMEDY)
    except LoadError as error:
        return Finding("tp_btf", Answer.UNKNOWN, error.cause, error.remedy)
    if result == 0:
        return Finding("tp_btf", Answer.YES, "an empty program on a tracepoint loaded and attached")
    why = os.strerror(-result).lower()
    if -result in (errno.EPERM, errno.EACCES):
        return Finding("tp_btf", Answer.UNKNOWN, why, _PRIVILEGE_REMEDY)
    return Finding("tp_btf", Answer.NO, f"the kernel refuses programs on tracepoints: {why}", _TP_BTF_REMEDY)


def try_fentry(function: str = _ANY_FUNCTION) -> Finding:
    """Whether the kernel takes a program on a function's entry (fentry), found by loading and attaching an empty one.

    Some kernels refuse every such program with EPERM and not a word from the verifier, which is also what a process
    without privileges gets. The two are told apart by a tracepoint program, which needs the same privileges.
    """
    try:
        with _open_btf(None) as kernel:
            result = kernel.try_fentry(function)
            privileged = result == 0 or kernel.try_tp_btf(_ANY_TRACEPOINT) == 0
    except OSError as error:
        return Finding("fentry", Answer.UNKNOWN, f"cannot read the kernel's BTF: {_reason(error)}", _BTF_REMEDY)
    except LoadError as error:
        return Finding("fentry", Answer.UNKNOWN, error.cause, error.remedy)
    if result == 0:
        return Finding("fentry", Answer.YES, f"an empty program on {function} loaded and attached")
    why = os.strerror(-result).lower()
    if not privileged and -result in (errno.EPERM, errno.EACCES):
        return Finding("fentry", Answer.UNKNOWN, why, _PRIVILEGE_REMEDY)
    but = ", though it takes programs on tracepoints" if privileged else ""
    return Finding("fentry", Answer.NO, f"the kernel refuses programs on functions: {why}{but}", _FENTRY_REMEDY)


_BTF_REMEDY = "use a kernel with CONFIG_DEBUG_INFO_BTF, and mount /sys"
_PRIVILEGE_REMEDY = "run as root, or grant CAP_BPF and CAP_PERFMON"
_TP_BTF_REMEDY = "use a kernel with CONFIG_BPF_SYSCALL, CONFIG_BPF_JIT and CONFIG_TRACEPOINTS"
_FENTRY_REMEDY = (
    "use a kernel that takes fentry programs, in a virtual machine for example (it needs "
    "CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS, on arm64 Linux 6.4 or later, and no policy against them)"
)


# --- the environment ------------------------------------------------------------------------------------------------


def environment(proc: Path = PROC, sys: Path = SYS) -> list[Finding]:
    """Everything about this process's surroundings that can stand in the way; reads files, tries nothing."""
    page = page_bytes()
    cpus = possible_cpus(sys)
    return [
        btf(sys),
        *capabilities(proc),
        lockdown(sys),
        unprivileged_bpf(proc),
        memlock(),
        pid_namespace(proc).finding(),
        Finding("page size", Answer.YES, f"{page} bytes"),
        Finding("possible CPUs", Answer.UNKNOWN if cpus is None else Answer.YES, str(cpus or f"{sys} does not say")),
        tracefs(sys),
    ]


def btf(sys: Path = SYS) -> Finding:
    """Whether the kernel's own BTF can be read."""
    path = sys / "kernel/btf/vmlinux"
    text = _try_read(path, 4)
    if isinstance(text, bytes):
        return Finding("BTF", Answer.YES, str(path))
    if isinstance(text, FileNotFoundError) and (sys / "kernel").is_dir():
        return Finding("BTF", Answer.NO, f"{path} does not exist", "use a kernel with CONFIG_DEBUG_INFO_BTF")
    return Finding("BTF", Answer.UNKNOWN, f"{path}: {_reason(text)}", "mount /sys, and make it readable")


def capabilities(proc: Path = PROC) -> list[Finding]:
    """CAP_BPF and CAP_PERFMON, which loading needs, and CAP_SYS_ADMIN, which stands for both."""
    status = _try_read(proc / "self/status")
    effective = _effective_capabilities(status) if isinstance(status, bytes) else None
    if effective is None:
        return [Finding(name, Answer.UNKNOWN, f"{proc} does not say", "mount /proc") for name in sorted(CAPABILITIES)]
    has = {name: bool(effective >> bit & 1) for name, bit in CAPABILITIES.items()}
    if any(has.values()) and not _in_initial_user_namespace(proc):
        # bpf(2) asks the initial user namespace, whatever this one grants.
        detail = "effective, but only in this user namespace, which bpf(2) does not take"
        remedy = "run in the initial user namespace"
        return [Finding(name, Answer.NO, detail, remedy) for name in sorted(CAPABILITIES) if has[name]]
    findings = []
    for name in sorted(CAPABILITIES):
        if has[name]:
            findings.append(Finding(name, Answer.YES, "effective"))
        elif name != "CAP_SYS_ADMIN" and has["CAP_SYS_ADMIN"]:
            findings.append(Finding(name, Answer.YES, "not effective, but CAP_SYS_ADMIN stands for it"))
        elif name == "CAP_SYS_ADMIN" and has["CAP_BPF"] and has["CAP_PERFMON"]:
            findings.append(Finding(name, Answer.NO, "not effective; CAP_BPF and CAP_PERFMON are enough"))
        else:
            findings.append(Finding(name, Answer.NO, "not effective", _PRIVILEGE_REMEDY))
    return findings


def lockdown(sys: Path = SYS) -> Finding:
    """Whether kernel lockdown lets BPF programs read kernel memory; confidentiality mode does not."""
    path = sys / "kernel/security/lockdown"
    text = _try_read(path)
    if not isinstance(text, bytes):
        # Not there: securityfs is not mounted, or the kernel has no lockdown. They look the same from here.
        remedy = f"mount -t securityfs securityfs {path.parent}" if isinstance(text, FileNotFoundError) else None
        return Finding("lockdown", Answer.UNKNOWN, f"{path}: {_reason(text)}", remedy)
    mode = next((word.strip("[]") for word in text.decode(errors="replace").split() if word.startswith("[")), "")
    if mode in ("none", "integrity"):
        return Finding("lockdown", Answer.YES, f"{mode}: BPF may read kernel memory")
    if mode == "confidentiality":
        remedy = "boot with lockdown=integrity or without it"
        return Finding("lockdown", Answer.NO, f"{mode}: BPF may not read kernel memory", remedy)
    return Finding("lockdown", Answer.UNKNOWN, f"{path} says {text.decode(errors='backslashreplace').strip()!r}")


def unprivileged_bpf(proc: Path = PROC) -> Finding:
    """The setting of kernel.unprivileged_bpf_disabled; tracing needs privileges whatever it says."""
    path = proc / "sys/kernel/unprivileged_bpf_disabled"
    text = _try_read(path)
    if not isinstance(text, bytes):
        return Finding("unprivileged BPF", Answer.UNKNOWN, f"{path}: {_reason(text)}")
    value = text.decode(errors="backslashreplace").strip()
    answer = Answer.YES if value == "0" else Answer.NO
    return Finding("unprivileged BPF", answer, f"unprivileged_bpf_disabled is {value}; tracing needs privileges anyway")


def memlock() -> Finding:
    """Whether RLIMIT_MEMLOCK can be in the way of BPF maps, which count against it before v5.11 only."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if resource.RLIM_INFINITY in (soft, hard):
        return Finding("RLIMIT_MEMLOCK", Answer.YES, "unlimited")
    detail = f"{hard // 1024} KiB at most, which matters before Linux 5.11 only"
    return Finding("RLIMIT_MEMLOCK", Answer.UNKNOWN, detail, "ulimit -l unlimited, or grant CAP_SYS_RESOURCE")


@dataclass(frozen=True)
class PidNamespace:
    """The pid namespace of this process, in whose pids a recording speaks."""

    device: int | None
    inode: int | None
    """As bpf_get_ns_current_pid_tgid takes them; None if /proc does not say."""

    @property
    def initial(self) -> bool | None:
        return None if self.inode is None else self.inode == INITIAL_PID_NAMESPACE

    def finding(self) -> Finding:
        if self.inode is None:
            return Finding("initial pid namespace", Answer.UNKNOWN, "/proc does not say", "mount /proc")
        if self.initial:
            return Finding("initial pid namespace", Answer.YES, f"pid:[{self.inode}]")
        detail = f"pid:[{self.inode}], an inner one: pids are shown as seen from here"
        return Finding("initial pid namespace", Answer.NO, detail)


def pid_namespace(proc: Path = PROC) -> PidNamespace:
    try:
        status = (proc / "self/ns/pid").stat()
    except OSError:
        return PidNamespace(None, None)
    return PidNamespace(status.st_dev, status.st_ino)


def page_bytes() -> int:
    """The kernel's page size; it is not 4096 everywhere."""
    return os.sysconf("SC_PAGE_SIZE")


def possible_cpus(sys: Path = SYS) -> int | None:
    """How many CPUs the kernel keeps per-CPU data for (the highest possible number plus one); None if unknown."""
    text = _try_read(sys / "devices/system/cpu/possible")
    try:
        # "0-3", "0", and with holes "0-3,8-11".
        return int(text.decode().strip().split(",")[-1].split("-")[-1]) + 1 if isinstance(text, bytes) else None
    except ValueError:
        return None


def tracefs(sys: Path = SYS) -> Finding:
    """Whether the classic tracepoint kmem:rss_stat can be found; only the fallback tier of the rss layer needs it."""
    tried = [sys / name / "events/kmem/rss_stat/id" for name in ("kernel/tracing", "kernel/debug/tracing")]
    results = [_try_read(path) for path in tried]
    for path, result in zip(tried, results, strict=True):
        if isinstance(result, bytes):
            return Finding("tracefs", Answer.YES, str(path.parents[3]))
    if any(isinstance(result, PermissionError) for result in results):
        return Finding("tracefs", Answer.UNKNOWN, "permission denied", "run as root")
    remedy = f"mount -t tracefs tracefs {tried[0].parents[3]}, if the rss layer asks for it"
    return Finding("tracefs", Answer.NO, "not mounted, or without kmem:rss_stat", remedy)


def _try_read(path: Path, size: int = 64 * 1024) -> bytes | OSError:
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        return error


def _effective_capabilities(status: bytes) -> int | None:
    found = re.search(rb"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return int(found[1], 16) if found else None


def _in_initial_user_namespace(proc: Path) -> bool:
    # The initial one maps every id to itself; without user namespaces there is no such file.
    text = _try_read(proc / "self/uid_map")
    return not isinstance(text, bytes) or text.split() == [b"0", b"0", b"4294967295"]
