"""Runs a command with fewer rights or in poorer surroundings, by system calls alone: guests have few tools.

python confine.py [OPTION VALUE]... CMD [ARG...]

--hide DIR puts an empty directory in the place of DIR, --read-only DIR one that takes nothing, --disk DIR=BYTES a file
system of that size, --bind FILE=FILE the second file in the place of the first: all for the command alone. --uid N
changes the user, who gets the capabilities named by --keep only, which the command inherits; --drop takes one from root
for good. --limit NAME=N sets a resource limit.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import struct

# include/uapi/linux/capability.h
CAPABILITIES = {
    "dac_read_search": 2,
    "kill": 5,
    "setgid": 6,
    "setuid": 7,
    "sys_ptrace": 19,
    "sys_admin": 21,
    "sys_resource": 24,
    "perfmon": 38,
    "bpf": 39,
}
_CAPABILITY_VERSION_3 = 0x20080522

# include/uapi/linux/prctl.h
PR_SET_KEEPCAPS = 8
PR_CAPBSET_DROP = 24
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2

CLONE_NEWNS = 0x00020000
MS_RDONLY = 1
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 1 << 18

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def own_mounts() -> None:
    check(libc.unshare(CLONE_NEWNS), "unshare")
    check(libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "make mounts private")


def mount_tmpfs(place: str, size_bytes: str | None = None, flags: int = 0) -> None:
    options = f"mode=1777,size={size_bytes}" if size_bytes else "mode=755"
    mounted = libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", ctypes.c_ulong(flags), os.fsencode(options))
    check(mounted, f"mount on {place}")


def mount_file(place: str, file: str) -> None:
    check(libc.mount(os.fsencode(file), os.fsencode(place), None, ctypes.c_ulong(MS_BIND), None), f"mount on {place}")


def capset(bits: int) -> None:
    head = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    low, high = bits & 0xFFFFFFFF, bits >> 32
    check(libc.capset(head, struct.pack("=6I", low, low, low, high, high, high)), "capset")


def become(uid: int, kept: list[str]) -> None:
    check(libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0), "keep capabilities")
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    capset(sum(1 << CAPABILITIES[name] for name in kept))
    for name in kept:
        check(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAPABILITIES[name], 0, 0), f"pass on {name}")


def main() -> None:
    parser = argparse.ArgumentParser()
    for option in ("hide", "read-only", "disk", "bind", "keep", "drop", "limit"):
        parser.add_argument(f"--{option}", action="append", default=[])
    parser.add_argument("--uid", type=int)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.hide or options.read_only or options.disk or options.bind:
        own_mounts()
    for place in options.hide:
        mount_tmpfs(place)
    for place in options.read_only:
        mount_tmpfs(place, flags=MS_RDONLY)
    for pair in options.bind:
        mount_file(*pair.rsplit("=", 1))
    for disk in options.disk:
        mount_tmpfs(*disk.rsplit("=", 1))
    for limit in options.limit:
        name, value = limit.split("=")
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (int(value), int(value)))
    for name in options.drop:
        check(libc.prctl(PR_CAPBSET_DROP, CAPABILITIES[name], 0, 0, 0), f"drop {name}")
    if options.uid is not None:
        become(options.uid, options.keep)
    os.execvp(options.command[0], options.command)


if __name__ == "__main__":
    main()
