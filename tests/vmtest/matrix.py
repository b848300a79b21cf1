"""The kernel matrix as data: what kernels.toml says, typed."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MATRIX_FILE = Path(__file__).with_name("kernels.toml")


class MatrixError(Exception):
    """Something between kernels.toml and a running guest went wrong; the message says what, then what to do."""


@dataclass(frozen=True)
class Suite:
    """A suite of the archive. `retired`: its keys may have moved to the keyring of removed keys."""

    name: str
    retired: bool = False


@dataclass(frozen=True)
class Kernel:
    """One row of the matrix.

    `name` is what the command line calls it; `series` and `flavour` select the package (6.12, cloud-amd64). `rss` and
    `rmap` are what this kernel must reach, in the words of `memtrack doctor --json`. `boot` is added to the kernel's
    command line. `possible_processors`: how many the kernel is to believe that it might get, if more than the two
    that it has. `ci`: part of what CI runs. `slow`: takes longest, and begins first. `skips`: workloads that this
    kernel may be unable to run; any other must run.
    """

    name: str
    series: str
    arch: str
    flavour: str
    why: str
    rss: str
    rmap: str
    boot: str = ""
    memory_mib: int = 2048
    possible_processors: int = 0
    ci: bool = False
    slow: bool = False
    skips: tuple[str, ...] = ()


@dataclass(frozen=True)
class Matrix:
    suites: tuple[Suite, ...]
    kernels: tuple[Kernel, ...]

    def kernel(self, name: str) -> Kernel:
        for kernel in self.kernels:
            if kernel.name == name:
                return kernel
        raise MatrixError(f"no kernel {name} in the matrix (there are {', '.join(k.name for k in self.kernels)})")


def load(path: Path = MATRIX_FILE) -> Matrix:
    return parse(tomllib.loads(path.read_text()))


def parse(data: dict[str, Any]) -> Matrix:
    """Matrix from the decoded toml. An unknown or missing key is an error: a misspelt tier must not pass as none."""
    try:
        suites = tuple(Suite(**suite) for suite in data["suite"])
        kernels = tuple(Kernel(**{**row, "skips": tuple(row.get("skips", ()))}) for row in data["kernel"])
    except (KeyError, TypeError) as error:
        raise MatrixError(f"the kernel matrix cannot be read: {error}") from error
    names = [kernel.name for kernel in kernels]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise MatrixError(f"the kernel matrix names {', '.join(twice)} twice")
    return Matrix(suites, kernels)
