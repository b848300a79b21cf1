"""Run a command or the test suite on real kernels, each in a guest under QEMU.

python -m tests.vmtest 6.12 -- CMD...    run one command on one kernel: its output, its exit status
python -m tests.vmtest 6.12 7.3          run the suite on these kernels
python -m tests.vmtest                   run the suite on every kernel of the matrix
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import fcntl
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.vmtest import fetch, foreign, initramfs, matrix, native, qemu, results, table
from tests.vmtest.matrix import Kernel, Matrix, MatrixError

RESULTS = initramfs.CHECKOUT / "build" / "vmtest"
# As timeout(1) and env(1) end: out of time, and failed before the command could tell.
EXIT_TIMED_OUT = 124
EXIT_NO_STATUS = 125
CONSOLE_LINES_SHOWN = 30
PROBLEMS_SHOWN = 10
# TCG runs a guest at a tenth of the host's speed or less; the whole suite is a matter of minutes there.
SUITE_TIMEOUT_S = 3600
COMMAND_TIMEOUT_S = 600


def main(arguments: Sequence[str]) -> int:
    head, command = split_command(arguments)
    options = parser().parse_args(head)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that guests are ended on the way out
    try:
        rows = matrix.load()
        if options.list:
            return show(rows)
        if options.check_archive:
            return check_archive(rows)
        if options.table:
            return show_table(rows)
        # Then the newest: they have the most to run, and what is long should not begin last.
        chosen = [rows.kernel(name) for name in options.kernels] or sorted(
            (kernel for kernel in reversed(rows.kernels) if kernel.ci or not options.ci),
            key=lambda kernel: not kernel.slow,
        )
        if command is None:
            return run_suite(rows, chosen, options)
        if len(options.kernels) != 1:
            raise MatrixError("a command runs on one kernel: name it")
        return run_command(rows, chosen[0], command, options)
    except MatrixError as error:
        print(f"vmtest: {error}", file=sys.stderr)
        return EXIT_NO_STATUS
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def split_command(arguments: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """What stands before `--`, and the command after it; None if there is no `--`."""
    if "--" not in arguments:
        return list(arguments), None
    at = list(arguments).index("--")
    return list(arguments[:at]), list(arguments[at + 1 :])


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.vmtest", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help="a row of kernels.toml")
    parser.add_argument("--list", action="store_true", help="list the matrix")
    parser.add_argument(
        "--check-archive", action="store_true", help="fail if the archive and the matrix have different series"
    )
    parser.add_argument("--table", action="store_true", help="print pages off, kernel by workload, of the last runs")
    parser.add_argument("--ci", action="store_true", help="of the matrix, only the rows marked so")
    parser.add_argument("--add", action="append", default=[], type=Path, metavar="PATH", help="take a file along")
    parser.add_argument("--boot", default="", metavar="ARGS", help="add to the kernel's command line")
    parser.add_argument("--memory", type=int, metavar="MIB", help="memory of the guest")
    parser.add_argument("--accelerator", default=qemu.ACCELERATOR, help="QEMU's -accel (kvm, where it works)")
    parser.add_argument(
        "--count-instructions", action="store_true", help="let the guest's clock be its instructions: 1 ns is one"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="run N guests at once")
    parser.add_argument("--timeout", type=float, metavar="S", help="end the guest after so many seconds")
    parser.add_argument("--pytest", action="append", default=[], metavar="ARG", help="hand ARG to the suite's pytest")
    return parser


def show(rows: Matrix) -> int:
    for kernel in rows.kernels:
        print(f"{kernel.name:12} {kernel.arch:6} rss={kernel.rss:8} rmap={kernel.rmap:8} {kernel.why}")
    return 0


def check_archive(rows: Matrix) -> int:
    """Compare the series of the matrix with those of the archive, by architecture and flavour."""
    differences = 0
    newest = max((kernel.series for kernel in rows.kernels), key=fetch.natural)
    for arch, flavour in dict.fromkeys((kernel.arch, kernel.flavour) for kernel in rows.kernels):
        mine = {kernel.series for kernel in rows.kernels if (kernel.arch, kernel.flavour) == (arch, flavour)}
        archive = fetch.Archive(arch, rows.suites, fetch.cache_dir())
        if not archive.update(max_age_s=0):
            raise MatrixError(f"the archive's lists for {arch} cannot be fetched, and older ones prove nothing")
        theirs = [fetch.release_series(release.name) for release in archive.releases(flavour)]
        if flavour == "cloud-amd64":
            missing, gone = fetch.series_difference(sorted(mine), theirs)
        else:  # stands for one property, not for every series: on the newest kernel, if that is what it is on
            missing, gone = fetch.newer_series(newest, theirs) if newest in mine else [], []
        for series in missing:
            print(f"{series} ({flavour}): in the archive, not in the matrix (add a row to kernels.toml)")
        for series in gone:
            print(f"{series} ({flavour}): in the matrix, no longer in the archive (runs only from a cache)")
        differences += len(missing) + len(gone)
    if not differences:
        print("the matrix has every series that the archive has")
    return 1 if differences else 0


def show_table(rows: Matrix) -> int:
    verdicts = [verdict for kernel in rows.kernels if (verdict := results.load(RESULTS / kernel.name))]
    if not verdicts:
        raise MatrixError("the suite has not run yet (python -m tests.vmtest)")
    print(table.markdown({verdict.kernel: table.of_verdict(verdict) for verdict in verdicts}), end="")
    return 0


def run_command(rows: Matrix, kernel: Kernel, command: list[str], options: argparse.Namespace) -> int:
    if not command:
        raise MatrixError("no command after --")
    timeout_s = options.timeout or COMMAND_TIMEOUT_S
    guest_files = [*options.add, *(program_files(command[0]) if kernel.arch == host_arch() else [])]
    with results_folder(f"run-{kernel.name}") as folder:
        with prepared(rows, kernel, command, guest_files, folder, options) as (guest, _):
            outcome = guest.run(lambda data: write_all(1, data), lambda data: write_all(2, data), timeout_s)
        results.unpack(outcome.results, folder)
        console = console_end(folder)
    if outcome.timed_out:
        print(f"vmtest: ended after {timeout_s:.0f} s", file=sys.stderr)
        return EXIT_TIMED_OUT
    if outcome.status is None:
        print(
            f"vmtest: the guest ended without an exit status; its console's end:\n{console}",
            file=sys.stderr,
        )
        return EXIT_NO_STATUS
    return outcome.status


def run_suite(rows: Matrix, kernels: Sequence[Kernel], options: argparse.Namespace) -> int:
    """Run the suite on each kernel, and tell of each as soon as it and those before it are done."""
    failed = 0
    # A guest's processors share one thread of the host, so that as many guests as the host has processors run at once.
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        try:
            for verdict in pool.map(lambda kernel: suite_on(rows, kernel, options), kernels):
                tell(verdict)
                failed += bool(verdict.problems)
        except BaseException:  # the pool waits for its threads, and they for their guests
            pool.shutdown(wait=False, cancel_futures=True)
            qemu.end_all()
            raise
    print(f"vmtest: {len(kernels) - failed} passed, {failed} failed")
    return 1 if failed else 0


def tell(verdict: results.Verdict) -> None:
    print(results.line(verdict), flush=True)
    for problem in verdict.problems[:PROBLEMS_SHOWN]:
        print(f"    {problem}", flush=True)
    if len(verdict.problems) > PROBLEMS_SHOWN:
        print(f"    and {len(verdict.problems) - PROBLEMS_SHOWN} more (see {RESULTS / verdict.kernel})", flush=True)


def suite_on(rows: Matrix, kernel: Kernel, options: argparse.Namespace) -> results.Verdict:
    command = ["sh", "tests/vmtest/guest-suite.sh", *options.pytest]
    with results_folder(kernel.name) as folder:
        try:
            with (
                prepared(rows, kernel, command, options.add, folder, options) as (guest, release),
                (folder / "output.log").open("wb", buffering=0) as log,
            ):
                outcome = guest.run(log.write, log.write, options.timeout or SUITE_TIMEOUT_S)
            results.unpack(outcome.results, folder)
            verdict = results.judge(kernel, release, outcome, folder)
        except MatrixError as error:  # of this kernel alone: the others have their turn
            verdict = results.Verdict(kernel.name, "", (str(error),), (), 0.0)
        results.save(verdict, folder)
    return verdict


@contextlib.contextmanager
def prepared(
    rows: Matrix,
    kernel: Kernel,
    command: Sequence[str],
    files: Sequence[Path],
    folder: Path,
    options: argparse.Namespace,
) -> Iterator[tuple[qemu.Guest, str]]:
    """A guest ready to run the command, and the release of its kernel; what it boots from is gone afterwards."""
    cache = fetch.cache_dir()
    with locked(cache):
        unpacked = fetch.Archive(kernel.arch, rows.suites, cache).kernel(kernel)
        if kernel.arch == host_arch():
            build_workloads()
            setup = native.setup(cache)
        else:
            setup = foreign.setup(kernel.arch, cache)
        modules = initramfs.module_archive(cache, unpacked.release, unpacked.modules)
    environment = {
        "HOME": "/root",
        "VMTEST_KERNEL": kernel.name,
        "VMTEST_RSS": kernel.rss,
        "VMTEST_RMAP": kernel.rmap,
        "VMTEST_RESULTS": "/results",
    }
    with tempfile.TemporaryDirectory(prefix="vmtest-") as temporary:
        initrd = Path(temporary, "initrd")
        with initrd.open("wb") as stream:
            for part in (setup.base, modules):
                with part.open("rb") as source:
                    shutil.copyfileobj(source, stream)
            initramfs.write_run(stream, setup, command, environment, [path.absolute() for path in files])
        guest = qemu.Guest(
            arch=kernel.arch,
            vmlinuz=unpacked.vmlinuz,
            initrd=initrd,
            console_log=folder / "console.log",
            boot=f"{kernel.boot} {options.boot}".strip(),
            memory_mib=options.memory or kernel.memory_mib,
            possible_processors=kernel.possible_processors,
            accelerator=options.accelerator,
            count_instructions=options.count_instructions,
        )
        yield guest, unpacked.release


@contextlib.contextmanager
def locked(cache: Path) -> Iterator[None]:
    """Let one at a time fill the cache, of this process's guests and of others'."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def host_arch() -> str:
    """The host's architecture, as Debian calls it."""
    machine = platform.machine()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def build_workloads() -> None:
    """Compile what the guest is to run: it has no compiler."""
    made = subprocess.run(
        ["make", "-s", "-C", "tests/workloads"], cwd=initramfs.CHECKOUT, capture_output=True, text=True
    )
    if made.returncode:
        raise MatrixError(f"cannot build the workloads: {made.stderr.strip()}")


def program_files(program: str) -> list[Path]:
    """The host's file behind a command's first word, which is taken along if the guest may lack it."""
    found = shutil.which(program, path=native.guest_path())
    if found is None or Path(found).is_relative_to(sys.prefix):
        return []
    return [Path(found)]


@contextlib.contextmanager
def results_folder(name: str) -> Iterator[Path]:
    """A folder to fill, which then replaces the last of its name whole: old files must not be taken for new ones."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=RESULTS))
    try:
        yield folder
    finally:
        folder.chmod(0o755)
        shutil.rmtree(RESULTS / name, ignore_errors=True)
        folder.rename(RESULTS / name)


def console_end(folder: Path) -> str:
    log = folder / "console.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-CONSOLE_LINES_SHOWN:])


def write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
