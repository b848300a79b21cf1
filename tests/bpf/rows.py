"""The workloads with a known answer: one row each, the same for pytest and for the command in a guest."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.bpf import checks, drivers
from tests.bpf.checks import ODD_ARGUMENT, ODD_NAME, Check
from tests.bpf.drivers import Driver

Command = list[str | bytes]


def as_it_is(command: Command, folder: Path) -> Command:  # noqa: ARG001 # see with_odd_names
    return command


def with_odd_names(command: Command, folder: Path) -> Command:
    """Under a name, and with an argument, that are no UTF-8 and have newlines."""
    program = os.fsencode(folder) + b"/" + ODD_NAME
    shutil.copy(os.fsencode(command[0]), program)
    return [program, *command[1:], ODD_ARGUMENT]


@dataclass(frozen=True)
class Row:
    """A program of tests/workloads with its arguments, which may name values of what it needs: `{group}`.

    `needs` are of environment.NEEDS, entered in this order. `disguise` makes the command what is run, in a folder of
    the run's own. `peak_at` names points at which the process that reports them is at its peak. `rises`: by
    point, how many bytes a process may hold more before it than at it and at the one before that; None where nobody
    knows. `execs`: points before which a program is executed, and how many bytes of arguments it is given; a few are 0.
    What the workload itself knows of its answer it asserts itself.
    """

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    peak_at: tuple[str, ...] = ()
    rises: Mapping[str, int] | None = None
    execs: Mapping[str, int] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    driver: Driver = drivers.spawned
    disguise: Callable[[Command, Path], Command] = as_it_is


def _row(
    command: str,
    *arguments: str,
    name: str = "",
    needs: Sequence[str] = (),
    peak_at: Sequence[str] = (),
    rises: Mapping[str, int] = {},
    execs: Mapping[str, int] = {},
    checks: Sequence[Check] = (),
    driver: Driver = drivers.spawned,
    disguise: Callable[[Command, Path], Command] = as_it_is,
) -> Row:
    shown = [argument for argument in arguments if not argument.startswith("{")]
    return Row(
        name=name or " ".join([command, *shown]),
        command=(command, *arguments),
        needs=tuple(needs),
        peak_at=tuple(peak_at),
        rises=rises,
        execs=execs,
        checks=tuple(checks),
        driver=driver,
        disguise=disguise,
    )


# What a thread, or the child of posix_spawn until it executes, has of a stack: glibc gives the latter 32 KiB.
STACK_BYTES = 32 << 10

# Code that a fork's child runs for the first time: what the kernel maps around a fault (fault_around_bytes). Which
# functions share such a window is the linker's choice.
CODE_BYTES = 64 << 10

KINDS_OF_MEMORY = (
    _row("touch_anon", peak_at=["written", "freed", "written again", "populated"]),
    _row("heap_and_stack", peak_at=["heap written"]),
    _row("huge_pages", "touch", needs=["huge pages"], peak_at=["touched"], checks=[checks.huge_steps]),
    _row("huge_pages", "split", needs=["huge pages"], checks=[checks.huge_steps, checks.no_phantom]),
    _row("huge_pages", "fork", needs=["huge pages"]),
    _row("huge_shmem", needs=["huge shmem"], peak_at=["touched"], checks=[checks.huge_steps]),
    _row("shared_memory", "anon", peak_at=["written"]),
    _row("shared_memory", "memfd", peak_at=["written"]),
    _row("shared_memory", "tmpfs", peak_at=["written"]),
    _row("shared_memory", "sysv", peak_at=["written"]),
    _row("file_mapping", "private", peak_at=["read", "half written"]),
    _row("file_mapping", "shared", peak_at=["read"]),
    _row("file_truncated", "truncate", peak_at=["read"]),
    _row("file_truncated", "truncate", "shmem", peak_at=["read"]),
    _row("file_truncated", "punch", peak_at=["read"]),
    _row("file_truncated", "punch", "shmem", peak_at=["read"]),
    _row("file_truncated", "copied", peak_at=["copied"]),
    _row("file_truncated", "copied", "shmem", peak_at=["copied"]),
    _row("inserted_pages", peak_at=["read"]),
    _row("remapped", peak_at=["written"], checks=[checks.hole_named]),
    _row("hugetlb", needs=["hugetlb"]),
    _row("swap", "anon", needs=["swap"]),
    _row("swap", "shmem", needs=["swap"], peak_at=["written"]),
    _row("ksm", needs=["ksm"], peak_at=["filled"]),
    _row("ksm", "zero", needs=["ksm zero pages"], peak_at=["filled"]),
    _row("compaction"),
    _row("collapse", "madvise", needs=["huge pages"], peak_at=["collapsed"]),
    _row("collapse", "khugepaged", needs=["khugepaged"], peak_at=["collapsed"]),
    _row("collapse", "shmem", needs=["huge shmem"]),
    _row("userfault", "anon", "thread"),
    _row("userfault", "anon", "process"),
    _row("userfault", "shmem", "thread"),
    _row("userfault", "shmem", "process"),
    _row("userfault", "move"),
    # Each of its threads has 8 MiB at most and 4 at last: all eight may have all of it at one time.
    _row("many_threads", rises={"churned": 8 * 4 << 20}),
)

PROCESSES = (
    _row("fork_child"),
    _row("fork_advice", "dontfork", peak_at=["written"]),
    _row("fork_advice", "wipe", peak_at=["written"]),
    _row(
        "spawner",
        "spawn",
        peak_at=["held"],
        rises={"command ended": STACK_BYTES},
        execs={"command ended": 0},
        checks=[checks.tree_stays_small],
    ),
    _row("spawner", "vfork", peak_at=["held"], execs={"command ended": 0}, checks=[checks.tree_stays_small]),
    _row("spawner", "fork"),
    _row("spawn_and_leave", checks=[checks.nothing_passed_on]),
    _row("vfork_holder", peak_at=["child wrote the rest"]),
    _row("shared_mm", "first leaves"),
    _row("shared_mm", "second leaves"),
    _row("shared_mm", "first execs", execs={"started": 0}),
    _row("shared_mm", "second execs", execs={"second gone": 0}),
    _row("exec_image", "place", execs={"started": 0}, checks=[checks.exec_recorded]),
    _row("exec_image", "child", checks=[checks.exec_recorded]),
    _row(
        "exec_image",
        "thread",
        rises={"started": STACK_BYTES},
        execs={"started": 0},
        checks=[checks.exec_recorded],
    ),
    _row("exec_image", "arguments", execs={"started": 1 << 20}, checks=[checks.exec_recorded]),
    _row("leader_exits", rises={"child unmapped": CODE_BYTES}, checks=[checks.one_exit]),
    _row("fork_migrating", needs=["huge pages"], checks=[checks.forks_met_entries]),
    _row("fork_migrating", "zeros", needs=["huge pages"], checks=[checks.forks_met_entries]),
    _row("fork_storm", checks=[checks.holder_undisturbed]),
    _row(
        "hold",
        "4",
        name="hold under a spawner of 400 MiB",
        peak_at=["held"],
        checks=[checks.own_size_only],
        driver=drivers.from_a_large_process,
    ),
    _row("commands_in_turn", peak_at=["held"], rises={"end": STACK_BYTES}, execs={"end": 0}),
    _row("five_forks", peak_at=["parent of five", "child"], checks=[checks.tree_peak]),
    _row("daemon", peak_at=["daemon wrote"], checks=[checks.daemon_followed]),
    _row("short_lived", checks=[checks.short_life]),
    _row("pid_reuse", checks=[checks.two_of_one_pid]),
    _row("pid_namespace", peak_at=["grandchild wrote"]),
    _row("hold", "4", name="odd names", peak_at=["held"], checks=[checks.names_kept], disguise=with_odd_names),
)

OTHERS_ACTING = (
    _row("foreign_pageout", "anon", needs=["swap"], peak_at=["written"], checks=[checks.acted_by_child]),
    _row("foreign_pageout", "file", peak_at=["read"], checks=[checks.acted_by_child]),
    _row("foreign_write", "vm_writev", peak_at=["written"], checks=[checks.acted_by_child]),
    _row("foreign_write", "mem", peak_at=["written"], checks=[checks.acted_by_child]),
    _row("foreign_write", "ptrace", peak_at=["written"], checks=[checks.acted_by_child]),
    _row("limited", "{group}", "{reclaim_file}", "{reclaim_value}", needs=["swap", "memory group"]),
    _row("kswapd", needs=["pressure"], checks=[checks.acted_by_the_kernel]),
    _row("oom_killed", "{group}", needs=["no swap", "memory group"], checks=[checks.killed]),
    _row(
        "touch_anon",
        name="touch_anon beside neighbours",
        checks=[checks.no_strangers],
        driver=drivers.beside_neighbours,
    ),
)

ADOPTION = (
    _row(
        "adoptee",
        rises={"new child unmapped": CODE_BYTES},
        checks=[checks.adopted_at_once],
        driver=drivers.adopted,
    ),
)

ROWS = (*KINDS_OF_MEMORY, *PROCESSES, *OTHERS_ACTING, *ADOPTION)

# Those that every change has to pass on several kernels (pytest's mark `core`): of each way through the hooks and of
# each way that a tree changes one, and none that takes long in a guest.
CORE = frozenset(
    {
        "heap_and_stack",
        "huge_pages split",
        "huge_pages fork",
        "huge_shmem",
        "shared_memory anon",
        "file_mapping private",
        "file_truncated punch",
        "remapped",
        "swap anon",
        "ksm",
        "collapse madvise",
        "userfault anon thread",
        "userfault move",
        "many_threads",
        "fork_child",
        "spawner vfork",
        "shared_mm second execs",
        "exec_image thread",
        "exec_image arguments",
        "leader_exits",
        "fork_migrating",
        "five_forks",
        "daemon",
        "short_lived",
        "pid_namespace",
        "foreign_write ptrace",
        "oom_killed",
        "adoptee",
    }
)
assert {row.name for row in ROWS} >= CORE
