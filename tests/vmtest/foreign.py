"""The base for guests of another architecture than the host's: Debian's interpreter, what is built here across.

Packages of the host's own release, so that the cross compiler's C library is the guest's too. Of the virtual
environment, distributions without native code are taken as they are, the others as the wheels of the same version.
"""

from __future__ import annotations

import compileall
import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import BinaryIO

from tests.vmtest.cpio import Archive as Cpio
from tests.vmtest.fetch import Archive
from tests.vmtest.initramfs import CHECKOUT, Setup, begin_base, cached, listing_key
from tests.vmtest.matrix import MatrixError, Suite
from tests.vmtest.native import DISTRIBUTIONS_LEFT_OUT, SYSTEM_PATH, stdlib_left_out
from tests.vmtest.tree import Tree, applets, files_below, static_busybox

# The interpreter with the whole standard library, and tools to look at a guest; their dependencies come along.
USERLAND = ("python3", "busybox-static", "libgcc-s1", "bpftool", "strace")
# What the extension is linked with, static.
LIBRARIES = ("libbpf-dev", "libelf-dev", "zlib1g-dev")
USERLAND_LEFT_OUT = ("usr/share", "var", "etc")


@dataclass(frozen=True)
class Machine:
    """An architecture by the names that the tools have for it."""

    debian: str
    gnu: str
    python: str

    @property
    def compiler(self) -> str:
        return f"{self.gnu}-gcc"


MACHINES = {"arm64": Machine("arm64", "aarch64-linux-gnu", "aarch64")}


def setup(arch: str, cache: Path) -> Setup:
    """The base and the checkout's native parts for guests of this architecture."""
    if arch not in MACHINES:
        raise MatrixError(f"guests of {arch} run on hosts of {arch} only (no cross build is known)")
    machine = MACHINES[arch]
    if shutil.which(machine.compiler) is None:
        raise MatrixError(f"{machine.compiler} is not there (install gcc-{machine.gnu}, libc6-dev-{arch}-cross)")
    release = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    archive = Archive(arch, (Suite(release),), cache, purpose="userland")
    archive.update()
    root = userland(archive, cache)
    packages = Path(sysconfig.get_paths()["purelib"])
    site = site_packages(packages, python_of(root), machine, cache)
    key = listing_key([*files_below(root), *site.values()])
    base = cached(cache, f"base-{arch}", key, lambda stream: write_base(stream, root, site))
    return Setup(
        base,
        {"PATH": SYSTEM_PATH, "PYTHONPATH": f"{CHECKOUT / 'python'}:{packages}"},
        replacements={**extension(machine, archive, cache), **workloads(machine)},
        native=False,
    )


def userland(archive: Archive, cache: Path) -> Path:
    """The root of the guest's programs, unpacked from packages, with byte code where this interpreter can make it."""
    packages = archive.with_dependencies(USERLAND)
    root = cache / f"userland-{archive.arch}-{key_of(packages)}"
    if not root.exists():
        for older in cache.glob(f"userland-{archive.arch}-*"):
            shutil.rmtree(older)
        partial = root.with_name(f".{root.name}-{os.getpid()}")
        archive.packages(packages, partial)
        for name in ("bin", "sbin", "lib"):  # links to be made at installation, on releases with a merged /usr
            if not os.path.lexists(partial / name):
                (partial / name).symlink_to(f"usr/{name}")
        compile_stdlib(partial)
        partial.rename(root)
    return root


def python_of(root: Path) -> str:
    """The version, as in 3.11, of the interpreter in a root."""
    (stdlib,) = root.glob("usr/lib/python3.*")
    return stdlib.name.removeprefix("python")


def compile_stdlib(root: Path) -> None:
    """Debian compiles at installation; in a guest it would take minutes, and be lost with it."""
    version = python_of(root)
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        stdlib = root / f"usr/lib/python{version}"
        # Unchecked: not every kernel keeps the times of an initramfs' files, by which byte code is found to be stale.
        compileall.compile_dir(
            stdlib, quiet=2, stripdir=str(root), prependdir="/", invalidation_mode=PycInvalidationMode.UNCHECKED_HASH
        )


def site_packages(packages: Path, version: str, machine: Machine, cache: Path) -> dict[Path, Path]:
    """Guest's path -> host's file of the virtual environment's distributions, for an interpreter of this version."""
    files: dict[Path, Path] = {}
    wheels = []
    for distribution in importlib.metadata.distributions(path=[str(packages)]):
        name = distribution.metadata["Name"].lower()
        if name in DISTRIBUTIONS_LEFT_OUT or name == "memtrack":
            continue
        own = [Path(os.path.normpath(str(file.locate()))) for file in distribution.files or []]
        if any(path.suffix == ".so" for path in own):
            wheels.append(f"{name}=={distribution.version}")
        else:
            files.update({path: path for path in own if path.is_relative_to(packages) and path.exists()})
    unpacked = unpacked_wheels(sorted(wheels), version, machine, cache)
    files.update({packages / path.relative_to(unpacked): path for path in files_below(unpacked)})
    return files


def unpacked_wheels(wheels: list[str], version: str, machine: Machine, cache: Path) -> Path:
    """Wheels for another machine, unpacked over one another."""
    folder = cache / f"wheels-{machine.python}-{key_of([*wheels, version])}"
    if folder.exists():
        return folder
    partial = folder.with_name(f".{folder.name}-{os.getpid()}")
    partial.mkdir(parents=True)
    # pip takes each name literally, so all the C library's versions that wheels are built for have to be there.
    platforms = [f"manylinux_2_{minor}_{machine.python}" for minor in range(17, 37)]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(partial),
    ]
    command += ["--python-version", version, "--implementation", "cp"]
    command += [f"--abi={abi}" for abi in (f"cp{version.replace('.', '')}", "abi3", "none")]
    command += [f"--platform={name}" for name in (*platforms, f"manylinux2014_{machine.python}")]
    result = subprocess.run([*command, *wheels], capture_output=True, text=True)
    if result.returncode:
        shutil.rmtree(partial)
        raise MatrixError(f"cannot get {' '.join(wheels)} for {machine.python}: {result.stderr.strip()}")
    for wheel in sorted(partial.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(partial)
        wheel.unlink()
    partial.rename(folder)
    return folder


def write_base(stream: BinaryIO, root: Path, site: Mapping[Path, Path]) -> None:
    archive = Cpio(stream)
    tree = Tree(archive, root)
    begin_base(tree)
    stdlib = root / f"usr/lib/python{python_of(root)}"
    tree.add_below(Path("/"), stdlib_left_out(stdlib) | {root / name for name in USERLAND_LEFT_OUT})
    tree.symlink(Path("/usr/bin/python"), "python3")
    for place, source in sorted(site.items()):
        tree.copy(source, place)
    # The host's busybox knows its own list; the guest's cannot be asked here, and is of the same version.
    for applet in applets(static_busybox()):
        tree.symlink(Path("/", applet), "/bin/busybox")
    archive.finish()


def extension(machine: Machine, archive: Archive, cache: Path) -> dict[Path, Path]:
    """The checkout's paths of the extension and the BPF object -> what is built for the machine."""
    include = Path(sysconfig.get_paths()["include"])
    names = [*LIBRARIES]
    if include.is_relative_to("/usr/include"):  # Debian's Python.h includes a part that each architecture has its own
        names.append(f"lib{include.name}-dev")
    sysroot = cache / f"sysroot-{machine.debian}-{key_of(names)}"
    if not sysroot.exists():
        partial = sysroot.with_name(f".{sysroot.name}-{os.getpid()}")
        archive.packages(names, partial)
        partial.rename(sysroot)
    output = CHECKOUT / "build" / f"vmtest-{machine.python}"
    environment = {
        **os.environ,
        "_PYTHON_HOST_PLATFORM": f"linux-{machine.python}",
        "CC": f"{machine.compiler} -B{sysroot / 'usr/lib' / machine.gnu}",
        "CFLAGS": f"-isystem {sysroot / 'usr/include'}",
    }
    code = f"import build, pathlib; build.build(pathlib.Path({str(output)!r}))"
    run([sys.executable, "-c", code], "build memtrack", environment)
    package = CHECKOUT / "python" / "memtrack"
    return {package / file.name: file for file in output.iterdir()}


def workloads(machine: Machine) -> dict[Path, Path]:
    """The checkout's paths of the workloads -> what is built for the machine."""
    output = CHECKOUT / "build" / f"workloads-{machine.python}"
    run(["make", "-s", "-C", "tests/workloads", f"BUILD={output}", f"CC={machine.compiler}"], "build the workloads")
    return {CHECKOUT / "build" / "workloads" / file.name: file for file in files_below(output) if file.suffix != ".o"}


def run(command: list[str], purpose: str, environment: Mapping[str, str] | None = None) -> None:
    result = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True)
    if result.returncode:
        raise MatrixError(f"cannot {purpose}: {result.stdout}{result.stderr}".strip())


def key_of(words: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]
