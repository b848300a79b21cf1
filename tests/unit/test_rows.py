"""The table of workloads is whole: every program is in it, and what it names exists."""

from __future__ import annotations

from pathlib import Path

from tests.bpf import checks, environment
from tests.bpf.real_programs import PROGRAMS
from tests.bpf.rows import ROWS

WORKLOADS = Path(__file__).resolve().parents[1] / "workloads"
EVERYTHING = (*ROWS, *PROGRAMS)


def test_every_program_is_in_the_table_or_in_a_test_of_its_own() -> None:
    programs = {path.stem for path in WORKLOADS.glob("*.c") if "\nint main(" in path.read_text()}
    listed = {row.command[0] for row in EVERYTHING}
    tests = "".join(path.read_text() for path in WORKLOADS.parent.rglob("*.py"))
    assert listed <= programs
    assert {name for name in programs - listed if f'"{name}"' not in tests} == set()


def test_names_are_unique() -> None:
    names = [row.name for row in EVERYTHING]
    assert len(names) == len(set(names))


def test_needs_are_those_that_exist() -> None:
    assert {need for row in EVERYTHING for need in row.needs} == environment.NEEDS.keys()


def test_points_are_those_that_programs_report() -> None:
    sources = "".join(path.read_text() for path in WORKLOADS.glob("*.c"))
    named = {name for row in EVERYTHING for name in row.peak_at}
    assert {name for name in named if f'"{name}"' not in sources} == set()


def test_every_check_is_used() -> None:
    used = {check for row in EVERYTHING for check in row.checks}
    defined = {
        function
        for name, function in vars(checks).items()
        if getattr(function, "__module__", "") == checks.__name__ and callable(function) and not name.startswith("_")
    } - {checks.Run}
    assert {check.__name__ for check in defined - used} == set()
