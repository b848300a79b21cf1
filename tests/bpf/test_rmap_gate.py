"""The rmap layer is there whole or not at all, and whoever asks is told the same."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import memtrack
from memtrack import Tracker, _native, doctor, features, hooks, loader
from memtrack.hooks import FamilyChoice, Plan
from tests.command.invocation import bpf_objects_of, report, run

pytestmark = [pytest.mark.bpf, pytest.mark.core]


def rmap_programs(plan: Plan) -> frozenset[str]:
    """Those that the layer would have on this kernel, by what it declares."""
    choices: list[FamilyChoice] = list(plan.families.values())
    return frozenset().union(*(choice.programs for choice in choices)) & plan.programs


class Refusing:
    """The library, on a kernel that says no to one program when that is attached."""

    def __init__(self, lib: Any, program: str, error: int) -> None:
        self._lib = lib
        self._program = program
        self._error = error
        self.attached: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, name)

    def probes__attach(self, probes: Any, program: bytes) -> int:
        if program.decode() == self._program:
            return -self._error
        done = int(self._lib.probes__attach(probes, program))
        if not done:
            self.attached.append(program.decode())
        return done


# ENOTSUPP is what arm64 says before 6.4; the last is a shortage, which a recording without the layer may not have.
@pytest.mark.parametrize("error", [errno.EBUSY, 524, errno.ENOMEM])
def test_a_hook_that_is_refused_when_others_are_in_place(error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = hooks.choose(features.probe(), rmap=True)
    programs = rmap_programs(plan)
    last = max(programs, key=lambda name: ("_exit" not in name, name), default="none")
    kernel = Refusing(_native.lib, last, error)
    monkeypatch.setattr(loader, "lib", kernel)
    with Tracker(rmap=True) as tracker:
        actual = tracker.plan
        loaded = {name for kind, name in bpf_objects_of() if kind == "prog"}
        assert tracker.spawn(["sh", "-c", "exit 3"]).wait() == 3
    assert actual.rmap.tier is None
    assert actual.rmap.reason
    assert "unknown error" not in actual.rmap.reason
    if set(kernel.attached) & programs:  # else the real kernel, or what it declares, said no before
        assert actual.rmap.reason.startswith(f"the kernel refused {last}: ")
    # Not one of them is left, neither loaded nor attached, and the rest is as without the option.
    assert not rmap_programs(actual)
    assert actual.programs == hooks.choose(features.probe(), rmap=False).programs
    assert len(loaded) <= len(actual.programs)
    assert not bpf_objects_of()
    with tracker.recording as recording:
        assert recording.complete
        assert recording.lost_events == 0
        assert recording.peak.rss_bytes
        assert recording.rmap_peak is None
        assert recording.sources["rmap"] == {"tier": None, "hooks": [], "reason": actual.rmap.reason}
        assert not recording.event_counts.get("RMAP")


def test_the_gate_is_closed_by_default() -> None:
    with Tracker() as tracker:
        assert not rmap_programs(tracker.plan)
        few = len({name for kind, name in bpf_objects_of() if kind == "prog"})
        assert few <= len(tracker.plan.programs)
        assert tracker.spawn(["true"]).wait() == 0
    with tracker.recording as recording:
        assert recording.sources["rmap"]["reason"] == "not requested (--rmap)"
        assert not recording.event_counts.get("RMAP")


@pytest.mark.parametrize("variable", [None, "MEMTRACK_TRACK_RMAP", "CODSPEED_MEMTRACK_TRACK_RMAP"])
def test_everybody_is_told_the_same(variable: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The terminal, the header, the JSON and doctor."""
    monkeypatch.chdir(tmp_path)
    option = ["--rmap"] if variable is None else []
    environment = {**os.environ, **({variable: "1"} if variable else {})}
    command = ["record", *option, "-o", "r", "--json", "j", "--", "sh", "-c", "exit 3"]
    done = run(*command, env=environment)
    assert done.code == 3
    with memtrack.open("r") as recording:
        rmap = recording.header["sources"]["rmap"]
        assert recording.sources["rmap"] == rmap
        counted = recording.event_counts.get("RMAP", 0)
        peak, layers = recording.rmap_peak, recording.layers
    assert json.loads(Path("j").read_text())["sources"]["rmap"] == report(Path("r"))["sources"]["rmap"] == rmap
    found = doctor.collect()["layers"]["rmap"]
    assert found["tier"] == rmap["tier"]
    assert (found["reason"] or "").startswith(rmap["reason"] or "")  # it may know what stands behind a refusal
    (line,) = [line for line in done.err.splitlines() if line.startswith("rmap hooks")]
    assert ("memtrack: the rmap layer is off" in done.err) == (rmap["tier"] is None)
    if rmap["tier"] is None:
        assert line.split(maxsplit=2)[2] == f"off ({rmap['reason']})"
        assert (rmap["hooks"], counted, peak, layers) == ([], 0, None, None)
    else:
        assert line.split(maxsplit=2)[2] == rmap["tier"]
        assert rmap["hooks"]
        assert counted > 0
        assert peak is not None
        assert peak.rss_bytes
        assert layers is not None
        assert not layers.differences


def test_what_a_program_holds_is_the_same_by_both_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the command line, where there are both; where there is one, nothing is said of the other."""
    monkeypatch.chdir(tmp_path)
    done = run("record", "--rmap", "-o", "r", "--", "sh", "-c", "true; true & wait", stdout=subprocess.DEVNULL)
    assert done.code == 0
    data = report(Path("r"))
    for process in data["processes"]:
        if data["sources"]["rmap"]["tier"] is None:
            assert process["rmap_peak"] is process["rmap_last"] is None
        elif data["sources"]["rss"]["tier"] == "percpu":
            members = ("rss_bytes", "anon_bytes", "file_bytes", "shmem_bytes")
            assert [process["last"][m] for m in members] == [process["rmap_last"][m] for m in members]
