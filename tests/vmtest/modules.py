"""Kernel modules of an unpacked kernel package: which there are, and what each needs.

Packages are unpacked, not installed, so no depmod ran; its work is done here for the few modules that guests may load.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterable, Mapping
from pathlib import Path

# What tests ask a guest for, with `modprobe`: swap without a disc, file systems other than the root's, loop devices.
WANTED = (
    "zram",
    "ext4",
    "loop",
    "brd",
    "virtio_blk",
    "virtio_pci",
    "virtio_console",
    "nvme",
    "overlay",
    "crc32c_generic",
    "lz4",
)


def module_name(path: str) -> str:
    """The name the kernel knows a module file by: `kernel/lib/lz4/lz4-hc.ko.xz` is `lz4_hc`."""
    return path.rsplit("/", 1)[-1].split(".ko", 1)[0].replace("-", "_")


def read_module(path: Path) -> bytes:
    """A module as insmod wants it; packages from 6.10 or so on ship them compressed."""
    content = path.read_bytes()
    return lzma.decompress(content) if path.suffix == ".xz" else content


def dependencies(module: bytes) -> tuple[str, ...]:
    """The names of the modules that this one's .modinfo section says it needs.

    .modinfo is a row of NUL-ended `key=value` strings; `depends` stands in every module, empty if it needs nothing.
    """
    marker = module.find(b"\0depends=")
    if marker < 0:
        return ()
    start = marker + len(b"\0depends=")
    names = module[start : module.index(b"\0", start)].decode()
    return tuple(name.replace("-", "_") for name in names.split(",") if name)


def closure(wanted: Iterable[str], available: Mapping[str, Path]) -> dict[str, tuple[bytes, tuple[str, ...]]]:
    """name -> (content, names it needs) of the wanted modules and all below them; what the kernel lacks is left out."""
    found: dict[str, tuple[bytes, tuple[str, ...]]] = {}
    waiting = [name for name in wanted if name in available]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        content = read_module(available[name])
        needs = tuple(need for need in dependencies(content) if need in available)
        found[name] = (content, needs)
        waiting.extend(needs)
    return found


def dep_file(modules: Mapping[str, tuple[bytes, tuple[str, ...]]]) -> str:
    """modules.dep as busybox's modprobe reads it: each module with everything below it, the deepest last."""

    def below(name: str) -> list[str]:
        order: list[str] = []
        for need in modules[name][1]:
            order += [need, *below(need)]
        return list(dict.fromkeys(order[::-1]))[::-1]  # keep the last of each: it must be loaded before all its users

    return "".join(f"{name}.ko:{''.join(f' {need}.ko' for need in below(name))}\n" for name in sorted(modules))


def find_modules(root: Path) -> dict[str, Path]:
    """name -> file of every module under an unpacked package's modules directory."""
    return {module_name(path.name): path for path in sorted(root.rglob("*.ko*")) if path.is_file()}
