"""Boot one guest under QEMU, pass its output through, hand back the exit status of what it ran."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from tests.vmtest.matrix import MatrixError

# By architecture: QEMU's program, machine and processor, and the kernel's name for the console.
# -cx16: QEMU 7.2's multi-threaded TCG gets cmpxchg16b's flags wrong, which the kernel's slab allocator uses.
MACHINES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "amd64": ("qemu-system-x86_64", ("-M", "q35", "-cpu", "Haswell-v4,-cx16"), "ttyS0"),
    "arm64": ("qemu-system-aarch64", ("-M", "virt", "-cpu", "max,pauth-impdef=on"), "ttyAMA0"),
}
# One host thread runs all virtual processors in turn. With a thread each, QEMU 7.2 can keep a translation of code that
# another processor has patched meanwhile, and run it: of guests in which hooks came and went under load, six of six
# panicked on a stale int3 within seconds. In turn, none of nine did.
ACCELERATOR = "tcg,thread=single"
# panic=-1: reboot at once, which -no-reboot turns into the end of QEMU. rootfstype=ramfs: the initramfs would be tmpfs
# otherwise, whose pages the kernel counts as shmem; a program's own pages are to count as file, as on a disc.
# mitigations=off: with page-table isolation every system call makes TCG forget all translated addresses.
BOOT = "panic=-1 rootfstype=ramfs mitigations=off"
# An instruction is a nanosecond of the guest's clock, which jumps where there is nothing to execute.
COUNTING = ("-icount", "shift=0,sleep=off")
# There is one clock for what all processors execute, so that one must not run while the other is measured; nor does 6.1
# get beyond starting the second. It stays possible, so that sums over CPUs are of as many.
COUNTING_BOOT = "maxcpus=1"
CHANNELS = ("stdout", "stderr", "status", "results")
# Enough for races between CPUs, and for sums over CPUs to matter.
PROCESSORS = 2
# The guest's /mnt/ext4 and its swap, each; sparse on the host.
DISC_MIB = 256

Sink = Callable[[bytes], object]

_running: set[subprocess.Popen[bytes]] = set()


@dataclass
class Outcome:
    """What came of a guest. `status` is None if it never told one: it panicked, hung, or was stopped."""

    status: int | None
    results: bytes
    duration_s: float
    timed_out: bool = False


@dataclass(frozen=True)
class Guest:
    arch: str
    vmlinuz: Path
    initrd: Path
    console_log: Path
    boot: str = ""
    memory_mib: int = 2048
    possible_processors: int = 0
    accelerator: str = ACCELERATOR
    count_instructions: bool = False
    """Its clock is what it has executed, a nanosecond an instruction."""

    def run(self, stdout: Sink, stderr: Sink, timeout_s: float) -> Outcome:
        """Boot, pass the command's output to the sinks as it comes, wait for the end.

        QEMU runs in a session of its own, which is ended whole when this returns or is interrupted.
        """
        status, results = bytearray(), bytearray()
        sinks = {"stdout": stdout, "stderr": stderr, "status": status.extend, "results": results.extend}
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="vmtest-") as folder, contextlib.ExitStack() as stack:
            disc_paths = format_discs(Path(folder))
            pipes = {name: os.pipe() for name in CHANNELS}
            readers = {name: stack.enter_context(FileIO(ends[0])) for name, ends in pipes.items()}
            writers = {name: ends[1] for name, ends in pipes.items()}
            try:
                process = stack.enter_context(start(self.command(writers, disc_paths), list(writers.values())))
            finally:
                for writer in writers.values():  # QEMU's alone now, so that the pipes end with it
                    os.close(writer)
            _running.add(process)  # before anyone can know that it runs, and end all that do
            pumps = [threading.Thread(target=pump, args=(readers[name], sinks[name])) for name in CHANNELS]
            for thread in pumps:
                thread.start()
            timed_out = False
            try:
                said, _ = process.communicate(timeout=timeout_s)
                if process.returncode:
                    raise MatrixError(f"QEMU ended with {process.returncode}: {said.decode(errors='replace').strip()}")
            except subprocess.TimeoutExpired:
                timed_out = True
            finally:
                end(process)
                _running.discard(process)
                for thread in pumps:
                    thread.join()
        return Outcome(parse_status(bytes(status)), bytes(results), time.monotonic() - started, timed_out)

    def pluggable_processors(self) -> list[str]:
        """Two processors, and places for more to be plugged in, each in a socket of its own.

        Linux believes in such places on a hypervisor only, from 6.9 on, and does not know TCG for one: this looks like
        VMware's. The alternative, processors that are there and kept offline, costs time at every turn.
        """
        count = self.possible_processors
        sockets = f"{PROCESSORS},maxcpus={count},sockets={count},cores=1,threads=1"
        cpu = f"{MACHINES[self.arch][1][-1]},-hypervisor"
        return ["-smp", sockets, "-cpu", cpu, "-smbios", "type=1,serial=VMware-vmtest"]

    def command(self, channel_ends: dict[str, int], disc_paths: Sequence[Path]) -> list[str]:
        """QEMU's command line; `channel_ends` are descriptors it inherits, which it opens anew by their names."""
        program, machine, console = MACHINES[self.arch]
        if shutil.which(program) is None:
            raise MatrixError(f"{program} is not there (install qemu-system-x86, for arm64 qemu-system-arm)")
        boot = f"{COUNTING_BOOT} {self.boot}" if self.count_instructions else self.boot
        append = f"console={console} {BOOT} quiet {boot}".strip()
        command = [program, *machine, "-accel", self.accelerator, "-m", str(self.memory_mib)]
        if self.count_instructions:
            command += COUNTING
        if self.possible_processors:
            command += self.pluggable_processors()
        else:
            command += ["-smp", str(PROCESSORS)]
        command += ["-kernel", str(self.vmlinuz), "-initrd", str(self.initrd), "-append", append]
        command += ["-nodefaults", "-display", "none", "-no-reboot", "-serial", f"file:{self.console_log}"]
        command += ["-device", "virtio-serial-pci"]
        for name, end in channel_ends.items():
            command += ["-chardev", f"file,id={name},path=/dev/fd/{end}"]
            command += ["-device", f"virtserialport,chardev={name},name={name}"]
        # NVMe, not virtio: its driver is built into Debian's cloud kernels, and not all of them come with modules.
        for path in disc_paths:
            command += ["-drive", f"file={path},format=raw,if=none,id={path.name}"]
            command += ["-device", f"nvme,drive={path.name},serial={path.name}"]
        # QEMU must not outlive this process, even if that is killed.
        guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        return guard + command


def start(command: Sequence[str], descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start QEMU in a session of its own, with what it says itself on `stdout`."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=descriptors,
        start_new_session=True,
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """End QEMU with all of its session, unless it has ended by itself."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def end_all() -> None:
    """End every guest of this process; the threads that run them then come to their ends."""
    for process in list(_running):
        end(process)


def parse_status(said: bytes) -> int | None:
    """What the guest's init wrote as the command's exit status; None if it did not come to that."""
    text = said.strip()
    return int(text) if text.isdigit() else None


def pump(reader: FileIO, sink: Sink) -> None:
    """Copy from a pipe to a sink until its other end is closed by all."""
    while data := reader.read(1 << 16):
        sink(data)


def format_discs(folder: Path) -> list[Path]:
    """Two sparse disc images: one with an empty ext4, one formatted as swap."""
    paths = []
    for name, tool in (("ext4", ["mkfs.ext4", "-q", "-F"]), ("swap", ["mkswap", "-q"])):
        path = folder / name
        with path.open("wb") as file:
            file.truncate(DISC_MIB << 20)
        program = shutil.which(tool[0], path="/usr/sbin:/sbin:/usr/bin:/bin")
        if program is None:
            raise MatrixError(f"{tool[0]} is not there (install e2fsprogs, util-linux)")
        subprocess.run([program, *tool[1:], path], check=True, capture_output=True)
        paths.append(path)
    return paths
