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
from collections.abc import Callable, Iterator, Sequence
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
# another processor has patched meanwhile, and run it: six of six guests panicked on a stale int3 within seconds of hooks
# being attached and detached under load. In turn, none of nine did.
ACCELERATOR = "tcg,thread=single"
# panic=-1: reboot at once, which -no-reboot turns into the end of QEMU. rootfstype=ramfs: the initramfs would be tmpfs
# otherwise, whose pages the kernel counts as shmem; a program's own pages are to count as file, as on a disc.
BOOT = "panic=-1 rootfstype=ramfs"
CHANNELS = ("stdout", "stderr", "status", "results")
# The guest's /mnt/ext4 and its swap, each; sparse on the host.
DISC_MIB = 256

Sink = Callable[[bytes], object]


@dataclass
class Outcome:
    """What came of a guest. `status` is None if it never told one: it panicked, hung, or was stopped."""

    status: int | None
    results: bytes
    duration_s: float
    timed_out: bool = False
    first_output_s: float | None = None


@dataclass(frozen=True)
class Guest:
    arch: str
    vmlinuz: Path
    initrd: Path
    console_log: Path
    boot: str = ""
    memory_mib: int = 1024
    processors: int = 2
    accelerator: str = ACCELERATOR

    def run(self, stdout: Sink, stderr: Sink, timeout_s: float) -> Outcome:
        """Boot, pass the command's output to the sinks as it comes, wait for the end.

        QEMU runs in a session of its own, which is ended whole when this returns or is interrupted.
        """
        status, results = bytearray(), bytearray()
        started = time.monotonic()
        outcome = Outcome(None, b"", 0.0)

        def first(sink: Sink) -> Sink:
            def note(data: bytes) -> None:
                if outcome.first_output_s is None:
                    outcome.first_output_s = time.monotonic() - started
                sink(data)

            return note

        sinks = {"stdout": first(stdout), "stderr": first(stderr), "status": status.extend, "results": results.extend}
        with discs() as disc_paths, contextlib.ExitStack() as stack:
            pipes = {name: os.pipe() for name in CHANNELS}
            readers = [stack.enter_context(FileIO(pipes[name][0])) for name in CHANNELS]
            ends = [pipes[name][1] for name in CHANNELS]
            command = self.command(dict(zip(CHANNELS, ends, strict=True)), disc_paths)
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    pass_fds=ends,
                    start_new_session=True,
                )
            finally:
                for end in ends:
                    os.close(end)
            pumps = [
                threading.Thread(target=pump, args=(reader, sinks[name]), daemon=True)
                for reader, name in zip(readers, CHANNELS, strict=True)
            ]
            for thread in pumps:
                thread.start()
            try:
                said, _ = process.communicate(timeout=timeout_s)
                if process.returncode:
                    raise MatrixError(f"QEMU ended with {process.returncode}: {said.decode(errors='replace').strip()}")
            except subprocess.TimeoutExpired:
                outcome.timed_out = True
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            for thread in pumps:
                thread.join()
        text = status.decode(errors="replace").strip()
        outcome.status = int(text) if text.isdigit() else None
        outcome.results = bytes(results)
        outcome.duration_s = time.monotonic() - started
        return outcome

    def command(self, channel_ends: dict[str, int], disc_paths: Sequence[Path]) -> list[str]:
        """QEMU's command line; `channel_ends` are descriptors it inherits, which it opens anew by their names."""
        program, machine, console = MACHINES[self.arch]
        if shutil.which(program) is None:
            raise MatrixError(f"{program} is not there (install qemu-system-x86, for arm64 qemu-system-arm)")
        append = f"console={console} {BOOT} quiet {self.boot}".strip()
        command = [
            program,
            *machine,
            "-accel",
            self.accelerator,
            "-smp",
            str(self.processors),
            "-m",
            str(self.memory_mib),
        ]
        command += ["-kernel", str(self.vmlinuz), "-initrd", str(self.initrd), "-append", append]
        command += ["-nodefaults", "-display", "none", "-no-reboot", "-serial", f"file:{self.console_log}"]
        command += ["-device", "virtio-serial-pci"]
        for name, end in channel_ends.items():
            command += ["-chardev", f"file,id={name},path=/dev/fd/{end}"]
            command += ["-device", f"virtserialport,chardev={name},name={name}"]
        # NVMe, not virtio: its driver is built into Debian's cloud kernels, and not all of them come with modules.
        for number, path in enumerate(disc_paths):
            command += ["-drive", f"file={path},format=raw,if=none,id=disc{number}"]
            command += ["-device", f"nvme,drive=disc{number},serial=disc{number}"]
        # QEMU must not outlive this process, even if that is killed.
        guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        return guard + command


def pump(reader: FileIO, sink: Sink) -> None:
    """Copy from a pipe to a sink until its other end is closed by all."""
    while data := reader.read(1 << 16):
        sink(data)


@contextlib.contextmanager
def discs() -> Iterator[list[Path]]:
    """Two sparse disc images: one with an empty ext4, one formatted as swap; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="vmtest-") as folder:
        paths = []
        for name, tool in (("ext4", ["mkfs.ext4", "-q", "-F"]), ("swap", ["mkswap", "-q"])):
            path = Path(folder, name)
            with path.open("wb") as file:
                file.truncate(DISC_MIB << 20)
            program = shutil.which(tool[0], path="/usr/sbin:/sbin:/usr/bin:/bin")
            if program is None:
                raise MatrixError(f"{tool[0]} is not there (install e2fsprogs, util-linux)")
            subprocess.run([program, *tool[1:], path], check=True, capture_output=True)
            paths.append(path)
        yield paths
