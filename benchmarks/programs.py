"""Compiles the programs of the benchmarks into build/benchmarks, when they are out of date."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "benchmarks" / "programs"
BUILD = ROOT / "build" / "benchmarks"

_HOST = ("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread")
# As memtrack's own object is compiled, see build.py.
_BPF = ("clang", "-target", "bpf", "-mcpu=v2", "-g", "-O2", "-Wall", f"-I{ROOT / 'bpf'}")


def program(name: str) -> str:
    """A static program, which starts fast and holds little memory of its own."""
    return _compile(SOURCES / f"{name}.c", BUILD / name, [*_HOST, "-static"], [])


def linked_with_libbpf(name: str) -> str:
    return _compile(SOURCES / f"{name}.c", BUILD / name, [*_HOST], ["-lbpf"])


def bpf_object(name: str) -> str:
    source = SOURCES / f"{name}.bpf.c"
    # Debian keeps asm/types.h, which linux/bpf.h includes, where only the host's compiler looks.
    asked = subprocess.run(["gcc", "-print-multiarch"], check=True, capture_output=True, text=True)
    return _compile(source, BUILD / f"{name}.bpf.o", [*_BPF, f"-I/usr/include/{asked.stdout.strip()}", "-c"], [])


def _compile(source: Path, output: Path, command: list[str], libraries: list[str]) -> str:
    newest = max(path.stat().st_mtime for path in [*SOURCES.glob("*.h"), *(ROOT / "bpf").glob("*.h"), source])
    if not output.exists() or output.stat().st_mtime < newest:
        output.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([*command, "-o", str(output), str(source), *libraries], check=True)
    return str(output)
