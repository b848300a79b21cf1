"""Which BPF programs to load: a pure function from what a kernel has to a plan with reasons.

A kernel version decides nothing here, because distributions backport; versions stand in messages only. The answer
depends on the names, parameters and members that the kernel's BTF has (`KernelFacts`) and on what the kernel has
already refused when it was tried.

What stays true when a hook is missing, and what is therefore still recorded:

``task_newtask`` (fork)
    Nobody says who was forked. Adopted processes are followed through exec to exit, and their figures are true; a
    command that the recorder starts is known by its fork alone, and neither it nor any child is seen. So figures of the
    whole tree are unknown: `Plan.lifecycle.reason` is set, and whoever sums over the tree gives null with that reason.
``sched_process_exec``
    Nothing says when a process gets a new address space. The command itself begins with an exec, and any other
    process may exec at any time, after which its last figures would stand for memory that is gone. No figure of
    either memory layer would be known to be true: both are off. Forks, exits and the command's status are recorded.
``sched_process_exit``
    Nothing says when a process and its address space end. The kernel reuses both the pid and the address of the
    ``mm_struct``, so that a stranger's memory would be charged to the dead. Both memory layers are off.
``rss_stat``
    The rss layer is off; the rmap layer, whose baselines come from the counters at fork and exec, is not touched.
Counters of an unknown shape (``mm_struct.rss_stat``)
    No absolute figure can be read at fork, exec and adoption, so that a child's inherited memory would be missing
    from both layers: both are off.
PREEMPT_RT
    The kernel changes the reverse map and the counters preemptibly, and skips a program that a preempted task on the
    same CPU is in the middle of. The rss layer reads the counter anew at every change and goes on exactly; the rmap
    layer, a sum of all changes, would need each of them, and is off.
``iter/task``
    A process that already runs cannot be adopted; nothing else depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from memtrack.facts import KernelFacts
from memtrack.rmap_hooks import (
    MIXED_TIER,
    NOTHING_WITHOUT,
    PROTOTYPES,
    RMAP_FAMILIES,
    RMAP_KNOWN,
    RMAP_TIERS,
    TRACEPOINT_PROGRAMS,
    Generation,
    changes_rmap,
)

_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Layer:
    """What is used for one layer of the recording."""

    hooks: tuple[str, ...] = ()
    """What is attached, named as BPF sections are: ``tp_btf/rss_stat``, ``fentry/page_remove_rmap``."""
    reason: str | None = None
    """Why the layer is off, or what of it is missing; None if it is whole."""
    tier: str | None = None
    """Which of several ways; a stable name, which is None when the layer is off."""


@dataclass(frozen=True)
class FamilyChoice:
    """How one hook family would be covered."""

    programs: frozenset[str] = frozenset()
    generation: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Plan:
    """The programs to load, and for each layer what they give or why it is off."""

    programs: frozenset[str]
    rss: Layer
    rmap: Layer
    lifecycle: Layer
    adopt: Layer
    families: Mapping[str, FamilyChoice] = field(default_factory=dict)
    """By family name; the same whether or not the rmap layer was asked for."""
    counters_are_percpu: bool = False
    """The shape of ``mm_struct.rss_stat``: percpu_counters, or atomics with a cache in each thread."""

    def sources(self) -> dict[str, Any]:
        """The ``sources`` object of a recording's header."""
        description = RSS_TIERS[self.rss.tier].description if self.rss.tier else None
        return {
            "rss": {"tier": self.rss.tier, "hook": description, "reason": self.rss.reason},
            "rmap": {"tier": self.rmap.tier, "hooks": list(self.rmap.hooks), "reason": self.rmap.reason},
            "lifecycle": {"hooks": list(self.lifecycle.hooks), "reason": self.lifecycle.reason},
        }


# --- what there is to choose from -----------------------------------------------------------------------------------

LIFECYCLE_LOSSES: Mapping[str, str] = MappingProxyType(
    {
        "sched_process_exec": "nothing says when a process gets a new address space",
        "sched_process_exit": "nothing says when a process and its address space end",
        "task_newtask": "no new process is seen, so figures of the whole tree are unknown",
    }
)
"""Tracepoints (program and tracepoint have one name) and what is lost without each; the gravest first."""

EXEC_CHARGES = "sched_prepare_exec"
"""Tracepoint (since v6.10) and program: what exec has charged for arguments, where its single charges are let go."""

STANDINS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "task_newtask": {"task_newtask_standin": "sched_wakeup_new"},
        **{
            name: {f"{name}_standin1": name, f"{name}_standin2": name}
            for name in ("sched_process_exec", "sched_process_exit", EXEC_CHARGES)
        },
    }
)
"""For each of these programs, those that do the same in case the kernel skips it, with their tracepoints. The kernel
skips a program that a task is in the middle of on the same CPU; where a task can be preempted there, that happens. What
the kernel refuses of these is done without."""

PREEMPTIBLE_TRACEPOINTS = "tp_transition_snapshot.srcu_gp"
"""A member that there is where tasks can be preempted in programs on tracepoints. Source: Linux kernel commit
a46023d5616e ("tracing: Guard __DECLARE_TRACE() use of __DO_TRACE_CALL() with SRCU-fast", in v7.0)."""

SLEEPING_SPINLOCKS = "spinlock.lock"
"""A member that there is where spinlocks are mutexes, that is with CONFIG_PREEMPT_RT: tasks can be preempted in any
program. Source: include/linux/spinlock_types.h."""

PREEMPTED_SUMS = (
    "the kernel is built with PREEMPT_RT: where a task is preempted in a hook, it skips that hook for others on the "
    "CPU, and a sum over the hooks misses pages"
)

# Without these no figure of a memory layer is known to be true; the docstring above says why.
_VITAL = ("sched_process_exec", "sched_process_exit")


@dataclass(frozen=True)
class RssTier:
    """One way to read the kernel's counters at every change."""

    programs: tuple[str, ...]
    hooks: tuple[str, ...]
    description: str


RSS_TIERS: Mapping[str, RssTier] = MappingProxyType(
    {
        "percpu": RssTier(
            ("rss_stat_percpu", "learn_cpu_offsets"), ("tp_btf/rss_stat",), "tp_btf/rss_stat (exact per-CPU sum)"
        ),
        "count": RssTier(
            ("rss_stat_count",),
            ("tp_btf/rss_stat",),
            "tp_btf/rss_stat (count argument, lags by up to 66 page faults per thread)",
        ),
        "classic": RssTier(
            ("rss_stat_mm", "rss_stat_size"),
            ("tp_btf/rss_stat", "tp/kmem/rss_stat"),
            "tp_btf/rss_stat with tp/kmem/rss_stat (size from the classic tracepoint)",
        ),
    }
)
"""By stable name, best first."""

_ITER_TASK = "bpf_iter_task"
_PERCPU_COUNTER = ("percpu_counter.count", "percpu_counter.counters")

FUNCTIONS: frozenset[str] = frozenset(
    {
        *PROTOTYPES,
        *NOTHING_WITHOUT.values(),
        *(name for family in RMAP_FAMILIES.values() for generation in family for name in generation.bypasses),
        _ITER_TASK,
    }
)
"""The functions to ask a kernel about, beside those that `changes_rmap` picks from all it has."""
TRACEPOINTS: frozenset[str] = frozenset(
    {
        "rss_stat",
        EXEC_CHARGES,
        *LIFECYCLE_LOSSES,
        *(hook for standins in STANDINS.values() for hook in standins.values()),
    }
)
MEMBERS: frozenset[str] = frozenset(
    {
        "mm_struct.rss_stat",
        *_PERCPU_COUNTER,
        "trace_event_raw_rss_stat.size",
        PREEMPTIBLE_TRACEPOINTS,
        SLEEPING_SPINLOCKS,
    }
)


# --- choosing -------------------------------------------------------------------------------------------------------


def choose(facts: KernelFacts, rmap: bool, refused: Mapping[str, str] = _NOTHING) -> Plan:
    """Plan what to load on a kernel.

    `refused` says which programs the kernel did not take when they were loaded or attached, and why; give it all
    refusals so far, and the plan does without those programs.
    """
    not_requested = Layer(reason="not requested (--rmap)")
    if facts.problem:
        off = Layer(reason=facts.problem)
        return Plan(frozenset(), rss=off, rmap=off if rmap else not_requested, lifecycle=off, adopt=off)

    lost = _lost_lifecycle(facts, refused)
    lifecycle = Layer(
        tuple(f"tp_btf/{name}" for name in LIFECYCLE_LOSSES if name not in lost),
        next((f"{why}: {LIFECYCLE_LOSSES[name]}" for name, why in lost.items()), None),
    )
    vital = next((f"{lost[name]}: {LIFECYCLE_LOSSES[name]}" for name in _VITAL if name in lost), None)
    percpu, shape_problem = _counters(facts)
    groundless = vital or shape_problem

    rss = Layer(reason=groundless) if groundless else _choose_rss(facts, percpu, refused)
    families = {name: _choose_family(name, facts, refused) for name in RMAP_FAMILIES}
    if not rmap:
        rmap_layer = not_requested
    elif groundless:
        rmap_layer = Layer(reason=groundless)
    elif SLEEPING_SPINLOCKS in facts.members:
        rmap_layer = Layer(reason=PREEMPTED_SUMS)
    elif percpu and "learn_cpu_offsets" in refused:
        rmap_layer = Layer(reason=f"{_refusal('learn_cpu_offsets', refused)}: there is no exact figure to start from")
    else:
        rmap_layer = _combine(families, facts)
    adopt = _choose_adopt(facts, refused)

    programs = set(LIFECYCLE_LOSSES) - set(lost)
    if rss.tier:
        programs.update(RSS_TIERS[rss.tier].programs)
    if rmap_layer.tier:
        programs.update(*(choice.programs for choice in families.values()))
    if percpu and (rss.tier or rmap_layer.tier) and "learn_cpu_offsets" not in refused:
        programs.add("learn_cpu_offsets")  # the figures at fork and exec are sums over CPUs too
    if adopt.tier:
        programs.add("adopt_task")
    if PREEMPTIBLE_TRACEPOINTS in facts.members:
        if rss.tier == "percpu" and EXEC_CHARGES not in refused and _begins_with_a_task(facts, EXEC_CHARGES):
            programs.add(EXEC_CHARGES)
        programs.update(*(_standins(name, facts, refused) for name in programs & STANDINS.keys()))
    return Plan(frozenset(programs), rss, rmap_layer, lifecycle, adopt, families, percpu)


def _refusal(program: str, refused: Mapping[str, str]) -> str:
    return f"the kernel refused {program}: {refused[program]}"


def _lost_lifecycle(facts: KernelFacts, refused: Mapping[str, str]) -> dict[str, str]:
    lost = {}
    for name in LIFECYCLE_LOSSES:
        if name not in facts.tracepoints:
            lost[name] = f"the kernel has no tracepoint {name}"
        elif not _begins_with_a_task(facts, name):
            lost[name] = f"tracepoint {name} does not begin with a task"
        elif name in refused:
            lost[name] = _refusal(name, refused)
    return lost


def _begins_with_a_task(facts: KernelFacts, tracepoint: str) -> bool:
    return facts.tracepoints.get(tracepoint, ())[:1] == ("struct task_struct *",)


def _standins(name: str, facts: KernelFacts, refused: Mapping[str, str]) -> list[str]:
    standins = STANDINS[name].items()
    return [name for name, hook in standins if name not in refused and _begins_with_a_task(facts, hook)]


def _counters(facts: KernelFacts) -> tuple[bool, str | None]:
    """Whether the counters are per-CPU, and why they cannot be read."""
    shape = facts.members.get("mm_struct.rss_stat")
    if shape == "array percpu_counter":
        missing = [name for name in _PERCPU_COUNTER if name not in facts.members]
        return True, f"the kernel has no {' and no '.join(missing)}" if missing else None
    if shape == "struct mm_rss_stat":
        return False, None
    if shape is None:
        return False, "the kernel has no mm_struct.rss_stat, so no counter can be read"
    return False, f"mm_struct.rss_stat has the unknown type {shape}, so no counter can be read"


def _choose_rss(facts: KernelFacts, percpu: bool, refused: Mapping[str, str]) -> Layer:
    arguments = facts.tracepoints.get("rss_stat")
    if arguments is None:
        return Layer(reason="the kernel has no tracepoint rss_stat")
    if arguments[:2] != ("struct mm_struct *", "int"):
        return Layer(reason=f"tracepoint rss_stat has unknown arguments ({', '.join(arguments)})")
    possible = {
        "percpu": percpu,
        "count": not percpu and len(arguments) == 3,
        "classic": "trace_event_raw_rss_stat.size" in facts.members,
    }
    reason = "tracepoint rss_stat does not say the size"
    for tier in (name for name in RSS_TIERS if possible[name]):
        obstacle = next((name for name in RSS_TIERS[tier].programs if name in refused), None)
        if obstacle is None:
            return Layer(RSS_TIERS[tier].hooks, tier=tier)
        reason = _refusal(obstacle, refused)
    return Layer(reason=reason)


def _choose_adopt(facts: KernelFacts, refused: Mapping[str, str]) -> Layer:
    if _ITER_TASK not in facts.functions:
        return Layer(reason="the kernel has no task iterator (needs Linux 5.8 or later)")
    if "adopt_task" in refused:
        return Layer(reason=_refusal("adopt_task", refused))
    return Layer(("iter/task",), tier="iter")


def _choose_family(family: str, facts: KernelFacts, refused: Mapping[str, str]) -> FamilyChoice:
    generations = RMAP_FAMILIES[family]
    if family in NOTHING_WITHOUT and NOTHING_WITHOUT[family] not in facts.functions:
        return FamilyChoice(generation="none")
    for age, generation in enumerate(generations):
        older = {name for old in generations[age + 1 :] for name in old.functions}
        # A successor that is there is in use, even if the kernel keeps what it succeeded for other callers.
        if any(name in facts.functions for name in generation.functions if name not in older):
            reason = _unsound(family, generation, facts, refused)
            if reason:
                return FamilyChoice(reason=reason)
            return FamilyChoice(generation.programs(facts), generation.name)
    known = " nor ".join(" with ".join(generation.functions) for generation in generations)
    return FamilyChoice(reason=f"the kernel has no function of the {family} family that is known here: neither {known}")


def _unsound(family: str, generation: Generation, facts: KernelFacts, refused: Mapping[str, str]) -> str | None:
    """Why hooking this generation of the family would not see everything."""
    names = generation.names(facts.functions)
    missing = [name for name in names if name not in facts.functions]
    if missing:
        present = next(name for name in names if name in facts.functions)
        return f"the {family} family is incomplete: the kernel has {present} without {' and '.join(missing)}"
    for name in generation.bypasses:
        if name in facts.functions:
            return (
                f"{generation.functions[0]} is not the only way in, {name} is another "
                f"(reconstruction needs Linux {generation.since} or later)"
            )
    for name in names:
        reason = _unreadable(name, facts.functions[name], generation.since)
        if reason:
            return reason
    for clone in sorted(facts.clones):
        if clone.partition(".")[0] in names:
            return f"the kernel's compiler made {clone} beside the function, whose callers no hook sees"
    obstacle = next((name for name in sorted(generation.programs(facts)) if name in refused), None)
    return _refusal(obstacle, refused) if obstacle else None


def _unreadable(function: str, actual: tuple[str, ...], since: str) -> str | None:
    """Why the parameters are not those that the program on this function reads."""
    wanted = PROTOTYPES[function]
    if "vma" in wanted and "vma" not in actual:
        direction = "goes" if "remove" in function else "comes"
        return (
            f"{function} has no vma parameter, so nothing says whose page {direction} "
            f"(reconstruction needs Linux {since} or later)"
        )
    spelled = tuple("address" if name == "addr" else name for name in actual)
    if spelled[: len(wanted)] != wanted:
        return f"{function} takes ({', '.join(actual)}), not ({', '.join(wanted)}) as its hook expects"
    return None


def _combine(families: Mapping[str, FamilyChoice], facts: KernelFacts) -> Layer:
    reason = next((choice.reason for choice in families.values() if choice.reason), None)
    if reason is None:
        unknown = sorted(name for name in facts.functions if changes_rmap(name) and name not in RMAP_KNOWN)
        if unknown:
            reason = f"the kernel also has {' and '.join(unknown)}, which is not known here"
    if reason:
        return Layer(reason=reason)
    chosen = {(name, choice.generation) for name, choice in families.items()}
    tier = next((name for name, tier in RMAP_TIERS.items() if tier.generations.items() <= chosen), MIXED_TIER)
    programs = sorted(name for choice in families.values() for name in choice.programs)
    return Layer(tuple(dict.fromkeys(map(_section, programs))), tier=tier)


def _section(program: str) -> str:
    if program in TRACEPOINT_PROGRAMS:
        return f"tp_btf/{TRACEPOINT_PROGRAMS[program]}"
    program = program.removesuffix("_again")
    return f"fexit/{program.removesuffix('_exit')}" if program.endswith("_exit") else f"fentry/{program}"
