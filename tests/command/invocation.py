"""Runs memtrack as a person does, and looks at what it left."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEMTRACK = (sys.executable, "-m", "memtrack")
CONFINE = (sys.executable, str(Path(__file__).with_name("confine.py")))

# The capability that lets another user into whatever directory the checkout and the interpreter are in; with it nothing
# can be written, signalled or loaded.
AS_NOBODY = (*CONFINE, "--uid", "65534", "--keep", "dac_read_search")

Argument = str | bytes | os.PathLike[str]

# A machine that builds and tests at the same time may be slow; nothing here takes a tenth of it otherwise.
TIMEOUT_S = 60


@dataclass(frozen=True)
class Done:
    """How a memtrack ended, and what it said."""

    code: int
    out: str
    err: str


def run(*arguments: Argument, within: Sequence[Argument] = (), **options: Any) -> Done:
    """python -m memtrack ARGUMENTS, started by the command `within`. Its stdin is empty."""
    options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    done = subprocess.run([*within, *MEMTRACK, *arguments], timeout=TIMEOUT_S, **options)
    return Done(
        done.returncode, *((stream or b"").decode(errors="surrogateescape") for stream in (done.stdout, done.stderr))
    )


def start(*arguments: Argument, within: Sequence[Argument] = (), **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*within, *MEMTRACK, *arguments], **options)


def fails(done: Done, code: int, cause: str, remedy: str | None = None) -> None:
    """One line `memtrack: cause (remedy)`, nothing on stdout, and this status. `cause` and `remedy` are expressions."""
    assert (done.code, done.out) == (code, ""), done
    assert one_line(done.err), done
    assert re.fullmatch(rf"memtrack: .*{cause}.*" + (rf" \(.*{remedy}.*\)" if remedy else ""), done.err.rstrip("\n")), (
        done
    )


def one_line(text: str) -> bool:
    return text.endswith("\n") and text.count("\n") == 1 and text.startswith("memtrack: ") and not text.endswith(".\n")


def until(condition: Callable[[], Any], seconds: float = TIMEOUT_S) -> Any:
    """Waits for what another process brings about, and returns it."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {condition}"
        time.sleep(0.01)
    return value


def report(path: Path) -> dict[str, Any]:
    """`memtrack report --json`, read by the process that tests."""
    import memtrack

    with memtrack.open(path) as recording:
        data: dict[str, Any] = json.loads(json.dumps(recording.report()))
    return data


BpfObject = tuple[str, int]


def bpf_objects_of(pid: int | str = "self") -> set[BpfObject]:
    """Kind and id of every BPF program, map and link that a process holds by a descriptor."""
    found = set()
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        try:
            text = entry.read_text()
        except FileNotFoundError:  # closed meanwhile
            continue
        # A link's descriptor tells its program too, but that one may be another's.
        match = re.search(r"^link_id:\t(\d+)$", text, re.MULTILINE) or re.search(
            r"^(?:map|prog)_id:\t(\d+)$", text, re.MULTILINE
        )
        if match:
            found.add((match[0].partition("_")[0], int(match[1])))
    return found


def bpf_objects() -> set[BpfObject]:
    """All that the kernel has, of whomever, by an independent reader."""
    return {
        (kind, entry["id"])
        for kind in ("prog", "map", "link")
        for entry in json.loads(subprocess.run(["bpftool", "-j", kind, "show"], capture_output=True, check=True).stdout)
    }


def gone(objects: set[BpfObject]) -> None:
    """Waits until the kernel has none of them: it frees them some time after the last descriptor is closed."""
    assert objects
    until(lambda: not objects & bpf_objects(), 10)
