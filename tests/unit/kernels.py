"""BTF of kernels past and imagined: kernels.c compiled for a version, read by the code that reads a real kernel's."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

from memtrack.facts import KernelFacts
from memtrack.features import probe

SOURCE = Path(__file__).with_name("kernels.c")


def compile_btf(directory: Path, version: str, *defines: str) -> Path:
    """An ELF file with the BTF of the kernel of this version, such as "6.6"."""
    # Not clang: its BPF target refuses functions of more than five parameters, and its others make no BTF.
    gcc = shutil.which("gcc")
    assert gcc, "gcc not found (install gcc 12 or later, which makes BTF)"
    major, minor = map(int, version.split("."))
    output = directory / f"kernel-{version}.o"
    options = ["-gbtf", "-w", f"-DKERNEL={100 * major + minor}", *(f"-D{name}" for name in defines)]
    subprocess.run([gcc, *options, "-c", str(SOURCE), "-o", str(output)], check=True)
    return output


@functools.cache
def kernel_facts(version: str, *defines: str) -> KernelFacts:
    with tempfile.TemporaryDirectory() as directory:
        facts = probe(compile_btf(Path(directory), version, *defines))
    assert facts.problem is None
    return facts
