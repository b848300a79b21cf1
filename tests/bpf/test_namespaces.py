"""The recorder inside a pid namespace of its own; what is recorded may make others again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
# By system calls alone, for guests have few tools: a new pid namespace, a first process in it, a /proc that shows it.
ENTER = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def check(result, what):
    if result:
        sys.exit(f"{what}: {os.strerror(ctypes.get_errno())}")
CLONE_NEWNS, CLONE_NEWPID, MS_REC, MS_PRIVATE = 0x00020000, 0x20000000, 0x4000, 1 << 18
check(libc.unshare(CLONE_NEWNS | CLONE_NEWPID), "unshare")
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
check(libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None), "make mounts private")
check(libc.mount(b"proc", b"/proc", b"proc", ctypes.c_ulong(0), None), "mount /proc")
assert os.getpid() == 1
os.execv(sys.argv[1], sys.argv[1:])
"""
WORKLOADS = ["touch_anon", "fork_child", "exec_image thread", "shared_mm first leaves", "pid_namespace", "adoptee"]


@pytest.mark.bpf
def test_recorder_in_a_pid_namespace() -> None:
    """The same figures as outside, under the pids of the namespace: those are what the oracle reports."""
    harness = [sys.executable, "-m", "tests.bpf.harness", "--rmap", *WORKLOADS]
    ended = subprocess.run(
        [sys.executable, "-c", ENTER, *harness], cwd=CHECKOUT, capture_output=True, text=True, timeout=600, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{len(WORKLOADS)} workloads, 0 failed" in ended.stdout
    assert "skipped" not in ended.stdout
