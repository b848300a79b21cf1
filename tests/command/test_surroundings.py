"""Machines and users that lack something: one line that says what, or a recording without it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import memtrack
from tests.command.invocation import AS_NOBODY, CONFINE, fails, report, run

pytestmark = pytest.mark.bpf

OBJECT = Path(memtrack.__file__).with_name("rss.bpf.o")
GRANT = "run as root, or grant CAP_BPF and CAP_PERFMON"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where everybody may write; as /tmp, on the way to which nobody else's directories are."""
    tmp_path.chmod(0o1777)
    return tmp_path


def refused(place: Path, within: tuple[str, ...], cause: str, remedy: str) -> None:
    """The command does not run, and nothing is left."""
    fails(
        run("record", "-o", place / "r", "--json", place / "j", "--", "touch", place / "ran", within=within),
        125,
        cause,
        remedy,
    )
    assert not list(place.iterdir())


def recorded(place: Path, *within: str) -> None:
    done = run("record", "-o", place / "r", "--", "sh", "-c", "exit 3", within=within)
    assert done.code == 3, done
    data = report(place / "r")
    assert data["complete"]
    assert data["sources"]["rss"]["reason"] is data["sources"]["lifecycle"]["reason"] is None
    assert data["peak"]["rss_bytes"] > 0


def test_another_user(place: Path) -> None:
    refused(place, AS_NOBODY, "cannot load BPF object: operation not permitted", GRANT)


def test_another_user_with_the_two_capabilities_that_it_takes(place: Path) -> None:
    recorded(place, *AS_NOBODY, "--keep", "bpf", "--keep", "perfmon")
    assert (place / "r").stat().st_uid == 65534


def test_with_them_running_processes_can_be_adopted_too() -> None:
    code = """
import os, memtrack
with memtrack.Tracker() as tracker:
    assert tracker.adopt(os.getppid()) >= 1
assert tracker.recording.peak.rss_bytes > 0
"""
    within = [*AS_NOBODY, "--keep", "bpf", "--keep", "perfmon", sys.executable, "-c", code]
    done = subprocess.run(within, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("capability", ["bpf", "perfmon"])
def test_one_of_them_is_not_enough(capability: str, place: Path) -> None:
    refused(place, (*AS_NOBODY, "--keep", capability), "operation not permitted", GRANT)


@pytest.mark.parametrize("missing", [("bpf", "sys_admin"), ("perfmon", "sys_admin")])
def test_root_that_lacks_them(missing: tuple[str, ...], place: Path) -> None:
    dropped = [word for name in missing for word in ("--drop", name)]
    refused(place, (*CONFINE, *dropped), "operation not permitted", GRANT)


def test_root_without_what_recording_does_not_need(place: Path) -> None:
    recorded(place, *CONFINE, "--drop", "sys_admin", "--drop", "sys_ptrace", "--drop", "sys_resource", "--drop", "kill")


@pytest.fixture
def user_namespaces() -> Iterator[None]:
    """As many as it takes, on a machine whose administrator allows none."""
    if not Path("/proc/self/ns/user").exists():
        pytest.skip("the kernel has no user namespaces (CONFIG_USER_NS)")
    limit = Path("/proc/sys/user/max_user_namespaces")
    before = limit.read_text()
    if int(before):
        yield
        return
    limit.write_text("8")
    yield
    limit.write_text(before)


@pytest.mark.usefixtures("user_namespaces")
def test_root_of_a_user_namespace_only(place: Path) -> None:
    within = ["unshare", "--user", "--map-root-user"]
    done = run("record", "-o", place / "r", "--", "true", within=within)
    fails(done, 125, "operation not permitted", "run in the initial user namespace")
    assert not list(place.iterdir())


@pytest.fixture
def object_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copy(OBJECT, tmp_path_factory.mktemp("object")))


@pytest.mark.parametrize("part", [0, 1 / 3, 2 / 3, 1], ids=["first byte", "a third", "two thirds", "last byte"])
def test_an_object_with_one_bit_flipped_is_not_loaded(part: float, place: Path, object_copy: Path) -> None:
    image = bytearray(object_copy.read_bytes())
    image[int(part * (len(image) - 1))] ^= 0x10
    object_copy.write_bytes(image)
    within = (*CONFINE, "--bind", f"{OBJECT}={object_copy}")
    refused(place, within, "the BPF object is not the one this build made", "reinstall memtrack")


def test_the_same_object_in_another_file_is(place: Path, object_copy: Path) -> None:
    recorded(place, *CONFINE, "--bind", f"{OBJECT}={object_copy}")


def test_no_btf(place: Path) -> None:
    cause = "nothing can be recorded: cannot read the kernel's BTF: there is none"
    refused(place, (*CONFINE, "--hide", "/sys/kernel/btf"), cause, "use a kernel with CONFIG_DEBUG_INFO_BTF")


def test_no_sys(place: Path) -> None:
    refused(place, (*CONFINE, "--hide", "/sys"), ".+", "mount /sys")


def test_no_proc(place: Path) -> None:
    refused(place, (*CONFINE, "--hide", "/proc"), "the pid namespace of this process is unknown", "mount /proc")


def test_tracefs_debugfs_and_what_tells_of_lockdown_are_not_needed(place: Path) -> None:
    hidden = ("/sys/kernel/tracing", "/sys/kernel/debug", "/sys/kernel/security", "/sys/fs/bpf")
    recorded(place, *CONFINE, *(word for path in hidden if Path(path).is_dir() for word in ("--hide", path)))


def test_lockdown_that_cannot_be_found_out_is_told_by_doctor() -> None:
    done = run("doctor", within=[*CONFINE, "--hide", "/sys/kernel/security"])
    assert done.code == 0
    (line,) = (line for line in done.out.splitlines() if line.strip().startswith("lockdown"))
    assert "could not tell" in line


def test_doctor_ends_well_whatever_it_finds() -> None:
    done = run("doctor", "--json", within=AS_NOBODY)
    assert done.code == 0, done
    assert json.loads(done.out)["layers"]["rss"]["answer"] != "yes"


def test_locked_memory(place: Path) -> None:
    recorded(place, *CONFINE, "--limit", "MEMLOCK=0", "--drop", "sys_resource")


def test_hardly_any_descriptors(place: Path) -> None:
    # From what an interpreter alone needs up to plenty: everything that takes one fails in turn, and nothing is taken
    # for a kernel that lacks something.
    for files in range(5, 200, 5):
        done = run("record", "-o", place / "r", "--", "true", within=[*CONFINE, "--limit", f"NOFILE={files}"])
        if done.code == 0:
            break
        fails(done, 125, "too many open files", "raise the limit on open files .ulimit -n.")
        assert not list(place.iterdir())
    sources = report(place / "r")["sources"]
    assert sources["rss"]["reason"] is sources["lifecycle"]["reason"] is None


def test_hardly_any_memory(place: Path) -> None:
    # From what an interpreter alone needs up to plenty: threads and the ring's mapping fail in turn.
    for megabytes in range(40, 280, 40):
        done = run(
            "record", "-f", "-o", place / "r", "--", "true", within=[*CONFINE, "--limit", f"AS={megabytes << 20}"]
        )
        # So little that the interpreter itself does not come up is not ours to tell.
        if done.code == 125:
            fails(done, 125, ".+")
            assert not list(place.iterdir())
    assert done.code == 0, done


def test_no_threads(place: Path) -> None:
    # Root's limit is not asked for; a user that nothing else runs as has one process, and that is all it may have.
    keep = [word for name in ("bpf", "perfmon", "dac_read_search") for word in ("--keep", name)]
    within = [*CONFINE, "--limit", "NPROC=1", "--uid", "65532", *keep]
    done = run("record", "-o", place / "r", "--", "true", within=within)
    fails(done, 125, "cannot record: can't start new thread", "raise the limits")
    assert not list(place.iterdir())


def test_a_file_system_that_is_read_only(place: Path) -> None:
    (place / "disk").mkdir()
    target = place / "disk" / "r"
    done = run(
        "record", "-o", target, "--", "touch", place / "ran", within=[*CONFINE, "--read-only", str(place / "disk")]
    )
    fails(
        done,
        125,
        f"cannot write {target}: read-only file system",
        "name a place on a file system that is not read-only",
    )
    assert not (place / "ran").exists()


@pytest.mark.parametrize("option", ["-o", "--json"])
def test_a_directory_of_somebody_else(option: str, place: Path) -> None:
    (place / "theirs").mkdir(mode=0o755)
    target = place / "theirs" / "r"
    others: list[str | Path] = ["-o", place / "r"] if option == "--json" else []
    done = run("record", option, target, *others, "--", "true", within=AS_NOBODY)
    fails(done, 125, f"cannot write {target}: permission denied", "name another place")
    assert not list((place / "theirs").iterdir())


def test_a_file_of_somebody_else_where_everybody_may_write(place: Path) -> None:
    # In a sticky directory nobody may take away what is another's.
    (place / "theirs").write_bytes(b"old")
    keep = [word for name in ("bpf", "perfmon") for word in ("--keep", name)]
    done = run("record", "-f", "-o", place / "theirs", "--", "true", within=[*AS_NOBODY, *keep])
    assert done.code == 125
    assert (
        done.err.splitlines()[-1]
        == f"memtrack: cannot write {place}/theirs: operation not permitted (name another place)"
    )
    assert (place / "theirs").read_bytes() == b"old"
    assert [path.name for path in place.iterdir()] == ["theirs"]


def test_reading_needs_no_rights(place: Path) -> None:
    assert run("record", "-o", place / "r", "--", "true").code == 0
    (place / "r").chmod(0o644)
    done = run("report", place / "r", within=AS_NOBODY)
    assert (done.code, done.err) == (0, "")


def test_files_in_the_current_directory_are_not_taken_for_modules(place: Path) -> None:
    # What -m itself imports before it comes to memtrack cannot be helped; README.md says so.
    loaded = "import runpy, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    others = {*sys.stdlib_module_names, "cffi", "zstandard", "numpy"} - {*done.stdout.split(), "__future__"}
    assert {"argparse", "json", "resource", "subprocess", "typing"} <= others
    for name in others:
        (place / f"{name}.py").write_text("raise SystemExit(f'{__file__} was run')\n")
    done_here = run("record", "-o", "r", "--", "sh", "-c", "exit 3", cwd=place)
    assert done_here.code == 3, done_here
    assert run("doctor", cwd=place).code == 0


def test_the_installed_program_does_the_same(place: Path) -> None:
    program = Path(sys.executable).with_name("memtrack")
    done = subprocess.run(
        [program, "record", "-o", place / "r", "--", "sh", "-c", "exit 3"], capture_output=True, check=False
    )
    assert done.returncode == 3
