"""Builds what is not Python: the BPF object and the extension ``memtrack._native``.

It is run in two ways: ``python build.py`` builds into ``python/memtrack`` for work in the checkout, and pip calls the
same file as the project's PEP 517 backend. Either way only what is out of date is built again.

Environment: ``CC``, ``CFLAGS`` and ``LDFLAGS`` for the host side, ``CLANG``, ``LLVM_STRIP`` and ``BPF_CFLAGS`` for the
kernel side, ``MEMTRACK_WERROR=1`` to make warnings errors in both, and ``_PYTHON_HOST_PLATFORM`` (for example
``linux-aarch64``), which setuptools reads too, to build for another machine than this one.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent
SOURCES = ROOT / "bpf"
PACKAGE = ROOT / "python" / "memtrack"

OBJECT_NAME = "rss.bpf.o"
EXTENSION_NAME = "_native.abi3.so"

# Every header of bpf/ is cffi's cdef too, apart from the kernel side's own.
KERNEL_HEADERS = ("*.bpf.h", "vmlinux.h")
PREAMBLE = ("stdbool.h", "stddef.h", "stdint.h", "sys/types.h")
DIGEST_DECLARATION = "extern const char memtrack_object_sha256[];"

# Python 3.10's limited API: one extension serves that version and all later ones.
LIMITED_API = "0x030a0000"

# v2 is what every kernel since 4.14 takes; v3 and v4 instructions would be refused by older kernels that we support.
BPF_CPU = "v2"

# As libbpf's bpf_tracing.h spells it, where the kernel's and Python's name for the machine differs.
TARGET_ARCH = {"x86_64": "x86", "aarch64": "arm64"}

WARNINGS = ("-Wall", "-Wextra")
# BPF_PROG names all arguments of a hook, used or not.
BPF_WARNINGS = (*WARNINGS, "-Wno-unused-parameter")
HOST_FLAGS = (
    *("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-fstack-protector-strong"),
    *("-D_GNU_SOURCE", "-D_FORTIFY_SOURCE=2"),
)

# The archives come before what they need. Found by the compiler's search path, so that a cross compiler finds its own.
ARCHIVES = (("libbpf.a", "libbpf-dev"), ("libelf.a", "libelf-dev"), ("libz.a", "zlib1g-dev"))
# libelf from 0.189 on can decompress zstd sections.
ARCHIVE_OF_NEWER_LIBELF = ("libzstd.a", "libzstd-dev")


class BuildError(Exception):
    """Says what could not be built and what to do about it."""


def machine() -> str:
    """The machine built for, as in a wheel's platform tag: ``x86_64``, ``aarch64``."""
    return sysconfig.get_platform().partition("-")[2]


def build(directory: Path = PACKAGE) -> None:
    """Put the BPF object and the extension into `directory`."""
    work = ROOT / "build" / f"native-{machine()}"
    import fcntl  # not everywhere, and only needed where there is something to build

    work.mkdir(parents=True, exist_ok=True)
    directory.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as lock:  # two builds in one checkout take turns
        fcntl.flock(lock, fcntl.LOCK_EX)
        build_object(work, directory / OBJECT_NAME)
        build_extension(work, directory / OBJECT_NAME, directory / EXTENSION_NAME)


def build_object(work: Path, output: Path) -> None:
    """Compile the kernel side, and take out everything but code, maps, relocations and BTF."""
    source = SOURCES / "rss.bpf.c"
    unstripped = work / "rss.unstripped.bpf.o"
    arch = TARGET_ARCH.get(machine(), machine())
    compile_command = [
        *shlex.split(os.environ.get("CLANG", "clang")),
        *("-target", "bpf", f"-mcpu={BPF_CPU}", "-g", "-O2", f"-D__TARGET_ARCH_{arch}"),
        *BPF_WARNINGS,
        *werror(),
        # BTF names the source files: without this the object would differ from checkout to checkout.
        f"-ffile-prefix-map={ROOT}=.",
        *shlex.split(os.environ.get("BPF_CFLAGS", "")),
        *("-c", str(source), "-o", str(unstripped)),
    ]
    strip_command = [
        *shlex.split(os.environ.get("LLVM_STRIP", "llvm-strip")),
        *("-g", str(unstripped), "-o", str(output)),
    ]
    run_if_stale(work / f"{output.name}.stamp", [source, *headers()], [output], compile_command, strip_command)


def build_extension(work: Path, bpf_object: Path, output: Path) -> None:
    """Compile the host side and cffi's glue, and link them with static libraries into one file."""
    glue = work / "_native.c"
    digest = work / "object_digest.c"
    write_glue(glue)
    sha256 = hashlib.sha256(bpf_object.read_bytes()).hexdigest()
    write_if_changed(digest, f'const char memtrack_object_sha256[] = "{sha256}";\n')

    compiler = shlex.split(os.environ.get("CC", "cc"))
    flags = [
        *HOST_FLAGS,
        f"-ffile-prefix-map={ROOT}=.",
        f"-I{SOURCES}",
        *shlex.split(os.environ.get("CFLAGS", "")),
    ]
    strict = [*WARNINGS, *werror()]
    # What cffi generates is not ours to keep free of warnings.
    python = [f"-DPy_LIMITED_API={LIMITED_API}", f"-I{sysconfig.get_path('include')}", "-w"]
    objects = []
    for source, extra in [*((c, strict) for c in host_sources()), (digest, []), (glue, python)]:
        target = work / f"{source.stem}.o"
        command = [*compiler, *flags, *extra, "-c", str(source), "-o", str(target)]
        run_if_stale(work / f"{target.name}.stamp", [source, *headers()], [target], command)
        objects.append(target)

    archives = find_archives(compiler)
    link_command = [
        *compiler,
        *("-shared", "-o", str(output)),
        *map(str, objects),
        *map(str, archives),
        "-Wl,--wrap=stderr",  # for bpf/static_link.c
        # Another libbpf or libz in the same process must neither see ours nor be seen by it.
        *("-Wl,--exclude-libs,ALL", "-Wl,-z,relro,-z,now", "-Wl,--strip-debug"),
        *shlex.split(os.environ.get("LDFLAGS", "")),
        "-lpthread",
    ]
    run_if_stale(work / f"{output.name}.stamp", [*objects, *archives], [output], link_command)


def host_sources() -> list[Path]:
    return sorted(path for path in SOURCES.glob("*.c") if not path.name.endswith(".bpf.c"))


def headers() -> list[Path]:
    return sorted(SOURCES.glob("*.h"))


def write_glue(path: Path) -> None:
    """Write the C source of the extension module, as cffi makes it from our headers, unless it is there already."""
    import cffi

    shared = cdef_headers()
    cdef = "".join(declarations(header.read_text(encoding="utf-8")) for header in shared)
    if "memtrack_object_sha256" not in cdef:
        cdef += DIGEST_DECLARATION
    includes = [*(f"#include <{name}>" for name in PREAMBLE), *(f'#include "{header.name}"' for header in shared)]
    ffi = cffi.FFI()
    ffi.cdef(cdef)
    ffi.set_source("memtrack._native", "\n".join([*includes, DIGEST_DECLARATION]), py_limited_api=True)
    with contextlib.redirect_stdout(io.StringIO()):  # it says "generating" and "already up-to-date"
        ffi.emit_c_code(str(path))


def cdef_headers() -> list[Path]:
    """Our headers that both sides or the host side read, each after those that it includes."""
    ordered: list[Path] = []

    def add(header: Path) -> None:
        if header in ordered or not header.exists() or any(header.match(name) for name in KERNEL_HEADERS):
            return
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', header.read_text(encoding="utf-8"), re.MULTILINE):
            add(SOURCES / name)
        ordered.append(header)

    for header in headers():
        add(header)
    return ordered


def declarations(header: str) -> str:
    """What of `header` cffi understands: no preprocessor lines but ``#define NAME NUMBER``."""
    header = re.sub(r"\\\n", " ", header)
    number = re.compile(r"#\s*define\s+\w+\s+(0x[0-9a-fA-F]+|[0-9]+)[uUlL]*\s*(/[*/].*)?$")
    kept = (line for line in header.splitlines() if not line.lstrip().startswith("#") or number.match(line))
    return "\n".join(kept) + "\n"


def find_archives(compiler: Sequence[str]) -> list[Path]:
    """The static libraries to link, in link order."""
    found = [find_archive(compiler, *archive) for archive in ARCHIVES]
    if any(path.name == "libelf.a" and b"ZSTD_" in path.read_bytes() for path in found):
        found.append(find_archive(compiler, *ARCHIVE_OF_NEWER_LIBELF))
    return found


def find_archive(compiler: Sequence[str], name: str, package: str) -> Path:
    answer = capture([*compiler, f"-print-file-name={name}"])
    if not Path(answer).is_absolute():  # the compiler gives the bare name back when it finds nothing
        raise BuildError(f"{name} not found (install {package}, which has the static library)")
    return Path(answer)


def werror() -> list[str]:
    return ["-Werror"] if os.environ.get("MEMTRACK_WERROR") == "1" else []


def run_if_stale(stamp: Path, inputs: Iterable[Path], outputs: Iterable[Path], *commands: Sequence[str]) -> None:
    """Run `commands` unless they made `outputs` from the same contents of `inputs` before."""
    fingerprint = hashlib.sha256()
    for command in commands:
        fingerprint.update("\0".join(command).encode() + b"\n")
    for path in inputs:
        fingerprint.update(hashlib.sha256(path.read_bytes()).digest())
    state = fingerprint.hexdigest()
    if all(path.exists() for path in outputs) and stamp.exists() and stamp.read_text() == state:
        return
    # A stamp must never vouch for outputs of a build that broke off.
    stamp.unlink(missing_ok=True)
    for command in commands:
        print(
            f"build.py: {Path(command[0]).name} {os.path.relpath(command[command.index('-o') + 1], ROOT)}", flush=True
        )
        try:
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        except FileNotFoundError as error:
            raise missing(command[0]) from error
        except subprocess.CalledProcessError as error:
            raise BuildError(f"{command[0]} failed (its messages are above): {shlex.join(command)}") from error
    stamp.write_text(state)


def capture(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError as error:
        raise missing(command[0]) from error


def missing(program: str) -> BuildError:
    return BuildError(f"{program} not found (install it, or name another one in the environment)")


def write_if_changed(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    try:
        build()
    except BuildError as problem:
        sys.exit(f"build.py: {problem}")
else:
    # As a PEP 517 backend: setuptools does the packaging, and is only there when pip has asked for a build.
    from setuptools import build_meta
    from setuptools.command.build_ext import build_ext
    from setuptools.errors import CompileError

    # ext-modules and the wheel's py-limited-api stand in pyproject.toml in sections that setuptools calls experimental.
    # Should they change, the wheel's tag does, and CI looks at that.
    warnings.filterwarnings("ignore", message=".*is still \\*experimental\\*")

    class BuildNative(build_ext):
        """In the place of setuptools' own compiling; pyproject.toml names it."""

        def run(self) -> None:
            # Elsewhere the package still reads recordings, which needs no extension.
            if not sysconfig.get_platform().startswith("linux-"):
                return
            try:
                build(PACKAGE if self.inplace or self.editable_mode else Path(self.build_lib) / "memtrack")
            except BuildError as problem:
                raise CompileError(str(problem)) from problem  # which setuptools shows without a traceback

        def get_outputs(self) -> list[str]:
            return []

        def get_output_mapping(self) -> dict[str, str]:
            return {}

    prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel
    prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable
    build_editable = build_meta.build_editable
    build_sdist = build_meta.build_sdist

    def build_wheel(
        wheel_directory: str,
        config_settings: dict[str, str | list[str] | None] | None = None,
        metadata_directory: str | None = None,
    ) -> str:
        # setuptools packs whatever lies there, also what an earlier build left and the sources no longer have.
        shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)
        for leftover in (ROOT / "build").glob("lib.*"):
            shutil.rmtree(leftover)
        return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
