"""What would be loaded on which kernel, from 5.10 to one that nobody has seen yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from memtrack.facts import KernelFacts
from memtrack.hooks import FUNCTIONS, LIFECYCLE_LOSSES, RSS_TIERS, TRACEPOINTS, Layer, Plan, choose
from memtrack.rmap_hooks import MIGRATION_PROTOTYPES, MIXED_TIER, RMAP_FAMILIES, RMAP_PROTOTYPES, RMAP_TIERS
from tests.unit.kernels import kernel_facts

LIFECYCLE = {"task_newtask", "sched_process_exec", "sched_process_exit"}
ALWAYS = {*LIFECYCLE, "adopt_task"}
PERCPU = {"rss_stat_percpu", "learn_cpu_offsets"}
COUNT = {"rss_stat_count"}
CLASSIC = {"rss_stat_mm", "rss_stat_size"}

PREPARED = {"sched_prepare_exec"}
AGAIN = {
    "task_newtask_standin",
    *(
        f"{hook}_standin{n}"
        for hook in ("sched_process_exec", "sched_process_exit", "sched_prepare_exec")
        for n in (1, 2)
    ),
}

PREEMPTIBLE = {*PERCPU, *PREPARED, *AGAIN}

PAGE = {"page_add_new_anon_rmap", "page_add_anon_rmap", "page_add_file_rmap", "page_remove_rmap"}
FOLIO_NEW = {*PAGE, "folio_add_new_anon_rmap"} - {"page_add_new_anon_rmap"}
FOLIO_RANGE = {*FOLIO_NEW, "page_add_file_rmap_exit", "folio_add_file_rmap_range"}
FOLIO = {
    "folio_add_new_anon_rmap",
    *(f"folio_add_anon_rmap_{level}" for level in ("ptes", "pmd")),
    *(f"folio_add_file_rmap_{level}" for level in ("ptes", "pmd")),
    *(f"folio_remove_rmap_{level}" for level in ("ptes", "pmd")),
}
FOLIO_PUD = {*FOLIO, "folio_add_file_rmap_pud", "folio_remove_rmap_pud"}

MIGRATION = {
    "migration_drops",
    *(
        f"{function}{when}{which}"
        for function in ("try_to_migrate_one", "remove_migration_pte", "migrate_vma_collect_pmd")
        for when in ("", "_exit")
        for which in ("", "_again")
    ),
}
NEWEST_RMAP = {*FOLIO_PUD, *MIGRATION}

NO_VMA = (
    "page_remove_rmap has no vma parameter, so nothing says whose page goes (reconstruction needs Linux 5.19 or later)"
)
TWO_WAYS = (
    "page_add_anon_rmap is not the only way in, do_page_add_anon_rmap is another "
    "(reconstruction needs Linux 5.19 or later)"
)

#         kernel  rss            rmap programs  tier, or why there is none
KERNELS = [
    ("5.10", "count", COUNT, set(), None, NO_VMA),
    ("5.17", "count", COUNT, set(), None, NO_VMA),
    ("5.18", "count", COUNT, set(), None, TWO_WAYS),
    ("5.19", "count", COUNT, PAGE, "page", None),
    ("6.0", "count", COUNT, PAGE, "page", None),
    ("6.1", "count", COUNT, PAGE, "page", None),
    ("6.2", "percpu", PERCPU, PAGE, "page", None),
    ("6.3", "percpu", PERCPU, FOLIO_NEW, "folio-new", None),
    ("6.4", "percpu", PERCPU, FOLIO_NEW, "folio-new", None),
    ("6.5", "percpu", PERCPU, FOLIO_NEW, "folio-new", None),
    ("6.6", "percpu", PERCPU, FOLIO_RANGE, "folio-range", None),
    ("6.7", "percpu", PERCPU, FOLIO_RANGE, "folio-range", None),
    ("6.8", "percpu", PERCPU, FOLIO, "folio", None),
    ("6.11", "percpu", PERCPU, FOLIO, "folio", None),
    ("6.12", "percpu", PERCPU, FOLIO, "folio", None),
    ("6.16", "percpu", PERCPU, FOLIO_PUD, "folio", None),
    ("6.17", "percpu", PERCPU, FOLIO_PUD, "folio", None),
    ("6.18", "percpu", PERCPU, FOLIO_PUD, "folio", None),
    ("6.19", "percpu", PERCPU, FOLIO_PUD, "folio", None),
    ("7.0", "percpu", PREEMPTIBLE, FOLIO_PUD, "folio", None),
    ("7.1", "percpu", PREEMPTIBLE, FOLIO_PUD, "folio", None),
    ("7.2", "percpu", PREEMPTIBLE, FOLIO_PUD, "folio", None),
    ("7.3", "percpu", PREEMPTIBLE, FOLIO_PUD, "folio", None),
]


RMAP_PROGRAMS = {
    program
    for generations in RMAP_FAMILIES.values()
    for generation in generations
    for program in generation.programs(KernelFacts(dict.fromkeys(FUNCTIONS, ()), dict.fromkeys(TRACEPOINTS, ())))
}


def core(plan: Plan) -> set[str]:
    """Without what only makes good that tasks can be preempted in programs."""
    return set(plan.programs) - AGAIN - PREPARED


def check_consistent(plan: Plan) -> None:
    """What every plan keeps to, whatever the kernel."""
    for layer in (plan.rss, plan.rmap, plan.adopt):
        assert (layer.tier is None) == (layer.reason is not None)
        assert bool(layer.hooks) == (layer.tier is not None)
    for reason in (plan.rss.reason, plan.rmap.reason, plan.lifecycle.reason, plan.adopt.reason):
        assert reason is None or ("\n" not in reason and not reason.endswith(".") and len(reason) < 250)
    # Every family is loaded whole, in one generation, or none is at all.
    chosen = {name for choice in plan.families.values() for name in choice.programs}
    assert plan.programs & RMAP_PROGRAMS == (chosen if plan.rmap.tier else set())


@pytest.mark.parametrize(("kernel", "rss_tier", "rss", "rmap", "tier", "reason"), KERNELS, ids=[k[0] for k in KERNELS])
def test_every_generation(
    kernel: str, rss_tier: str, rss: set[str], rmap: set[str], tier: str | None, reason: str | None
) -> None:
    plan = choose(kernel_facts(kernel), rmap=True)
    check_consistent(plan)
    assert plan.programs == {*ALWAYS, *rss, *rmap, *(MIGRATION if rmap else ())}
    assert (plan.rss.tier, plan.rss.reason) == (rss_tier, None)
    assert (plan.rmap.tier, plan.rmap.reason) == (tier, reason)
    assert plan.lifecycle.reason is plan.adopt.reason is None
    assert plan.counters_are_percpu == (rss_tier == "percpu")

    closed = choose(kernel_facts(kernel), rmap=False)
    check_consistent(closed)
    assert closed.programs == {*ALWAYS, *rss}
    assert closed.rmap == Layer(reason="not requested (--rmap)")
    assert (closed.rss, closed.lifecycle, closed.adopt) == (plan.rss, plan.lifecycle, plan.adopt)
    assert closed.families == plan.families


def test_all_tiers_are_reached_by_some_kernel() -> None:
    assert {row[4] for row in KERNELS} - {None} == set(RMAP_TIERS)


def test_stand_ins_that_the_kernel_refuses_are_done_without() -> None:
    plan = choose(kernel_facts("7.3"), rmap=True)
    less = choose(kernel_facts("7.3"), rmap=True, refused=dict.fromkeys(AGAIN, "no"))
    assert less.programs == plan.programs - AGAIN
    assert (less.rss, less.rmap, less.lifecycle) == (plan.rss, plan.rmap, plan.lifecycle)


@pytest.mark.parametrize("kernel", ["6.1", "6.12", "7.3"])
def test_no_sums_over_hooks_that_a_preempted_task_hides(kernel: str) -> None:
    plan = choose(kernel_facts(kernel, "PREEMPT_RT"), rmap=True)
    check_consistent(plan)
    assert plan.rmap.tier is None
    assert (plan.rmap.reason or "").startswith("the kernel is built with PREEMPT_RT: ")
    usual = choose(kernel_facts(kernel), rmap=False)
    assert (plan.programs, plan.rss, plan.lifecycle) == (usual.programs, usual.rss, usual.lifecycle)


def test_what_exec_charges_is_asked_for_only_where_it_is_let_go() -> None:
    facts = kernel_facts("7.3")
    assert not choose(facts, rmap=False, refused={"rss_stat_percpu": "no"}).programs & {*PREPARED, *AGAIN} - {
        standin for hook in LIFECYCLE for standin in AGAIN if standin.startswith(hook)
    }
    plan = choose(facts, rmap=False, refused=dict.fromkeys(PREPARED, "no"))
    assert plan.rss.tier == "percpu"
    assert not {name for name in plan.programs if name.startswith("sched_prepare_exec")}


def test_wrapper_and_successor_are_hooked_at_entry_and_exit() -> None:
    hooks = choose(kernel_facts("6.6"), rmap=True).rmap.hooks
    assert {"fentry/page_add_file_rmap", "fexit/page_add_file_rmap", "fentry/folio_add_file_rmap_range"} <= set(hooks)


# --- kernels that do not exist (yet) ----------------------------------------------------------------------------------

NEWEST = kernel_facts("7.3")


def without(facts: KernelFacts, *names: str) -> KernelFacts:
    return replace(
        facts,
        functions={name: value for name, value in facts.functions.items() if name not in names},
        tracepoints={name: value for name, value in facts.tracepoints.items() if name not in names},
        members={name: value for name, value in facts.members.items() if name not in names},
    )


def with_functions(facts: KernelFacts, functions: Mapping[str, tuple[str, ...]]) -> KernelFacts:
    return replace(facts, functions={**facts.functions, **functions})


def rss_only(plan: Plan, reason: str) -> None:
    """The rmap layer is off for this reason, and nothing else has suffered."""
    check_consistent(plan)
    assert plan.rmap == Layer(reason=reason)
    assert core(plan) == {*ALWAYS, *PERCPU}
    assert plan.rss.reason is plan.lifecycle.reason is plan.adopt.reason is None


def test_a_newer_kernel_with_one_family_renamed() -> None:
    rss_only(
        choose(kernel_facts("7.4", "RENAMED_REMOVE"), rmap=True),
        "the kernel has no function of the remove family that is known here: "
        "neither folio_remove_rmap_ptes with folio_remove_rmap_pmd nor page_remove_rmap",
    )


@pytest.mark.parametrize("family", [family for family in RMAP_FAMILIES if family != "migration"])
def test_a_newer_kernel_without_one_family(family: str) -> None:
    own = RMAP_FAMILIES[family][0]
    plan = choose(without(NEWEST, *own.functions, *own.optional), rmap=True)
    assert plan.rmap.reason is not None
    assert f"the {family} family" in plan.rmap.reason
    assert all(name in plan.rmap.reason for name in own.functions)
    rss_only(plan, plan.rmap.reason)


@pytest.mark.parametrize(
    ("family", "missing"),
    [
        (family, name)
        for family, generations in RMAP_FAMILIES.items()
        for name in generations[0].functions
        if len(generations[0].functions) > 1 and family != "file"
    ]
    + [("file", "folio_add_file_rmap_ptes"), ("file", "folio_add_file_rmap_pmd")],
)
def test_half_a_family_is_none(family: str, missing: str) -> None:
    other = next(name for name in RMAP_FAMILIES[family][0].functions if name != missing)
    rss_only(
        choose(without(NEWEST, missing), rmap=True),
        f"the {family} family is incomplete: the kernel has {other} without {missing}",
    )


def test_half_a_successor_does_not_fall_back_to_the_wrapper() -> None:
    facts = with_functions(without(NEWEST, "folio_remove_rmap_pmd"), {"page_remove_rmap": ("page", "vma", "compound")})
    rss_only(
        choose(facts, rmap=True),
        "the remove family is incomplete: the kernel has folio_remove_rmap_ptes without folio_remove_rmap_pmd",
    )


def test_the_successor_wins_over_a_wrapper_that_is_kept() -> None:
    kept = with_functions(NEWEST, dict.fromkeys(PAGE, ("page", "vma", "address", "flags")))
    assert choose(kept, rmap=True) == choose(NEWEST, rmap=True)


@pytest.mark.parametrize("name", ["folio_add_anon_rmap_pud", "folio_remove_rmap_range", "page_add_swap_rmap"])
def test_a_function_nobody_knew_turns_the_layer_off(name: str) -> None:
    plan = choose(with_functions(NEWEST, {name: ("folio", "vma")}), rmap=True)
    rss_only(plan, f"the kernel also has {name}, which is not known here")


@pytest.mark.parametrize("function", sorted(FOLIO_PUD | {"try_to_migrate_one", "remove_migration_pte"}))
def test_parameters_in_other_places_turn_the_layer_off(function: str) -> None:
    moved = ("vma", *(name for name in NEWEST.functions[function] if name != "vma"))
    reason = choose(with_functions(NEWEST, {function: moved}), rmap=True).rmap.reason
    expected = ", ".join({**RMAP_PROTOTYPES, **MIGRATION_PROTOTYPES}[function])
    assert reason == f"{function} takes ({', '.join(moved)}), not ({expected}) as its hook expects"


@pytest.mark.parametrize("function", sorted(FOLIO_PUD))
def test_a_copy_by_the_compiler_turns_the_layer_off(function: str) -> None:
    plan = choose(replace(NEWEST, clones=frozenset({f"{function}.constprop.0"})), rmap=True)
    rss_only(plan, f"the kernel's compiler made {function}.constprop.0 beside the function, whose callers no hook sees")


def test_copies_of_what_is_not_hooked_do_no_harm() -> None:
    clones = frozenset({"page_remove_rmap.isra.0", "folio_remove_rmap_ptes_x.part.0"})
    assert choose(replace(NEWEST, clones=clones), rmap=True) == choose(NEWEST, rmap=True)


def test_further_parameters_and_a_shorter_name_do_no_harm() -> None:
    facts = with_functions(
        NEWEST, {"folio_add_anon_rmap_pmd": ("folio", "page", "vma", "addr", "flags", "level", "more")}
    )
    assert choose(facts, rmap=True).rmap.tier == "folio"


def test_a_backport_of_some_families_is_sound_too() -> None:
    facts = kernel_facts("6.6")
    newer = {name: NEWEST.functions[name] for name in FOLIO if "anon" in name}
    plan = choose(with_functions(facts, newer), rmap=True)
    check_consistent(plan)
    assert plan.rmap.tier == MIXED_TIER
    assert "page_add_anon_rmap" not in plan.programs
    assert {"folio_add_anon_rmap_ptes", "folio_add_file_rmap_range", "page_remove_rmap"} <= plan.programs


# --- pages on the move ------------------------------------------------------------------------------------------------


def test_a_kernel_that_migrates_unseen() -> None:
    rss_only(
        choose(without(NEWEST, *MIGRATION_PROTOTYPES), rmap=True),
        "the kernel has no function of the migration family that is known here: "
        "neither try_to_migrate_one with remove_migration_pte",
    )
    rss_only(
        choose(without(NEWEST, "remove_migration_pte"), rmap=True),
        "the migration family is incomplete: the kernel has try_to_migrate_one without remove_migration_pte",
    )


def test_a_kernel_that_never_migrates_needs_no_hooks_for_it() -> None:
    plan = choose(kernel_facts("6.12", "NO_MIGRATION", "NO_DEVICE_MIGRATION"), rmap=True)
    check_consistent(plan)
    assert plan.rmap.tier == "folio"
    assert core(plan) == {*ALWAYS, *PERCPU, *FOLIO}


def test_a_kernel_without_device_memory() -> None:
    plan = choose(kernel_facts("6.12", "NO_DEVICE_MIGRATION"), rmap=True)
    check_consistent(plan)
    assert core(plan) == {*ALWAYS, *PERCPU, *FOLIO} | {name for name in MIGRATION if "collect" not in name}


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", sorted(NEWEST_RMAP))
def test_one_refused_rmap_program_takes_the_layer_down_and_no_other(program: str) -> None:
    plan = choose(NEWEST, rmap=True, refused={program: "operation not permitted"})
    rss_only(plan, f"the kernel refused {program}: operation not permitted")


def test_a_refusal_does_not_revive_an_older_generation() -> None:
    refused = {"folio_add_new_anon_rmap": "operation not permitted"}
    assert choose(kernel_facts("6.5"), rmap=True, refused=refused).rmap.tier is None


@pytest.mark.parametrize("program", sorted(PERCPU))
def test_sums_that_cannot_be_made_come_from_the_classic_tracepoint(program: str) -> None:
    plan = choose(NEWEST, rmap=False, refused={program: "invalid argument"})
    check_consistent(plan)
    assert plan.rss == Layer(RSS_TIERS["classic"].hooks, tier="classic")
    assert core(plan) == {*ALWAYS, *CLASSIC, *(PERCPU - {program, "rss_stat_percpu"})}


def test_the_count_argument_has_the_same_fallback() -> None:
    plan = choose(kernel_facts("6.1"), rmap=False, refused={"rss_stat_count": "invalid argument"})
    assert core(plan) == {*ALWAYS, *CLASSIC}


def test_no_exact_start_no_reconstruction() -> None:
    plan = choose(NEWEST, rmap=True, refused={"learn_cpu_offsets": "invalid argument"})
    check_consistent(plan)
    assert plan.rmap == Layer(
        reason="the kernel refused learn_cpu_offsets: invalid argument: there is no exact figure to start from"
    )


def test_when_the_fallback_is_refused_too_its_refusal_is_the_reason() -> None:
    refused = {"rss_stat_percpu": "invalid argument", "rss_stat_size": "no such file or directory"}
    plan = choose(NEWEST, rmap=True, refused=refused)
    check_consistent(plan)
    assert plan.rss == Layer(reason="the kernel refused rss_stat_size: no such file or directory")
    assert plan.rmap.tier == "folio"
    assert core(plan) == {*ALWAYS, *NEWEST_RMAP, "learn_cpu_offsets"}


def test_refusals_come_to_an_end() -> None:
    """Whatever a kernel refuses, doing without it and trying again ends, and with a plan that has none of it."""
    refused: dict[str, str] = {}
    while refusals := choose(NEWEST, rmap=True, refused=refused).programs:
        refused[min(refusals)] = "operation not permitted"
    plan = choose(NEWEST, rmap=True, refused=refused)
    check_consistent(plan)
    assert all(layer.reason for layer in (plan.rss, plan.rmap, plan.lifecycle, plan.adopt))


# --- a hook missing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", ["sched_process_exec", "sched_process_exit"])
@pytest.mark.parametrize("how", ["missing", "refused"])
def test_without_exec_or_exit_no_figure_is_known_to_be_true(hook: str, how: str) -> None:
    facts, refused = (without(NEWEST, hook), {}) if how == "missing" else (NEWEST, {hook: "permission denied"})
    plan = choose(facts, rmap=True, refused=refused)
    check_consistent(plan)
    cause = (
        f"the kernel has no tracepoint {hook}" if how == "missing" else f"the kernel refused {hook}: permission denied"
    )
    reason = f"{cause}: {LIFECYCLE_LOSSES[hook]}"
    assert plan.rss.reason == plan.rmap.reason == plan.lifecycle.reason == reason
    assert core(plan) == {*ALWAYS} - {hook}
    assert plan.lifecycle.hooks == tuple(f"tp_btf/{name}" for name in LIFECYCLE_LOSSES if name != hook)


def test_without_fork_adopted_processes_are_still_accounted() -> None:
    plan = choose(without(NEWEST, "task_newtask"), rmap=True)
    check_consistent(plan)
    assert plan.lifecycle.reason == (
        "the kernel has no tracepoint task_newtask: no new process is seen, so figures of the whole tree are unknown"
    )
    assert plan.rss.reason is plan.rmap.reason is None
    assert core(plan) == {*ALWAYS, *PERCPU, *NEWEST_RMAP} - {"task_newtask"}


def test_the_gravest_loss_is_told_first() -> None:
    plan = choose(without(NEWEST, *LIFECYCLE), rmap=False)
    assert plan.lifecycle == Layer(
        reason="the kernel has no tracepoint sched_process_exec: nothing says when a process gets a new address space"
    )
    assert core(plan) == {"adopt_task"}


def test_without_rss_stat_the_rmap_layer_stands_alone() -> None:
    plan = choose(without(NEWEST, "rss_stat"), rmap=True)
    check_consistent(plan)
    assert plan.rss == Layer(reason="the kernel has no tracepoint rss_stat")
    assert plan.rmap.tier == "folio"
    assert core(plan) == {*ALWAYS, *NEWEST_RMAP, "learn_cpu_offsets"} - {"migration_drops"}


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ("array lazy_percpu_counter", "mm_struct.rss_stat has the unknown type array lazy_percpu_counter"),
        (None, "the kernel has no mm_struct.rss_stat"),
    ],
)
def test_counters_of_an_unknown_shape(shape: str | None, reason: str) -> None:
    members = {**NEWEST.members, "mm_struct.rss_stat": shape} if shape else {}
    plan = choose(replace(NEWEST, members=members), rmap=True)
    check_consistent(plan)
    assert plan.rss.reason == plan.rmap.reason == f"{reason}, so no counter can be read"
    assert core(plan) == ALWAYS


@pytest.mark.parametrize("member", ["percpu_counter.count", "percpu_counter.counters"])
def test_percpu_counters_of_an_unknown_shape(member: str) -> None:
    plan = choose(without(NEWEST, member), rmap=True)
    check_consistent(plan)
    assert plan.rss.reason == plan.rmap.reason == f"the kernel has no {member}"


def test_tracepoints_with_other_arguments() -> None:
    swapped = replace(NEWEST, tracepoints={**NEWEST.tracepoints, "rss_stat": ("int", "struct mm_struct *")})
    plan = choose(swapped, rmap=False)
    assert plan.rss == Layer(reason="tracepoint rss_stat has unknown arguments (int, struct mm_struct *)")
    headless = replace(NEWEST, tracepoints={**NEWEST.tracepoints, "sched_process_exit": ("bool",)})
    assert choose(headless, rmap=False).lifecycle.reason == (
        f"tracepoint sched_process_exit does not begin with a task: {LIFECYCLE_LOSSES['sched_process_exit']}"
    )


def test_no_adoption_without_the_task_iterator() -> None:
    plan = choose(without(NEWEST, "bpf_iter_task"), rmap=False)
    assert plan.adopt == Layer(reason="the kernel has no task iterator (needs Linux 5.8 or later)")
    assert core(plan) == {*LIFECYCLE, *PERCPU}
    refused = choose(NEWEST, rmap=False, refused={"adopt_task": "invalid argument"})
    assert refused.adopt == Layer(reason="the kernel refused adopt_task: invalid argument")


@pytest.mark.parametrize("rmap", [False, True])
def test_nothing_is_known(rmap: bool) -> None:
    plan = choose(KernelFacts(problem="cannot read the kernel's BTF: permission denied"), rmap)
    check_consistent(plan)
    assert core(plan) == frozenset()
    assert plan.rss.reason == plan.lifecycle.reason == "cannot read the kernel's BTF: permission denied"
    assert plan.rmap.reason == ("cannot read the kernel's BTF: permission denied" if rmap else "not requested (--rmap)")


def test_an_empty_kernel_is_not_an_error() -> None:
    plan = choose(KernelFacts(), rmap=True)
    check_consistent(plan)
    assert core(plan) == frozenset()


# --- what is written into a recording ---------------------------------------------------------------------------------


def test_sources_of_a_recording() -> None:
    assert choose(kernel_facts("6.1"), rmap=True).sources() == {
        "rss": {
            "tier": "count",
            "hook": "tp_btf/rss_stat (count argument, lags by up to 66 page faults per thread)",
            "reason": None,
        },
        "rmap": {
            "tier": "page",
            "hooks": [
                "fentry/migrate_vma_collect_pmd",
                "fexit/migrate_vma_collect_pmd",
                "tp_btf/rss_stat",
                *(f"fentry/{name}" for name in sorted(PAGE)),
                "fentry/remove_migration_pte",
                "fexit/remove_migration_pte",
                "fentry/try_to_migrate_one",
                "fexit/try_to_migrate_one",
            ],
            "reason": None,
        },
        "lifecycle": {
            "hooks": ["tp_btf/sched_process_exec", "tp_btf/sched_process_exit", "tp_btf/task_newtask"],
            "reason": None,
        },
    }
    assert choose(KernelFacts(problem="no BTF"), rmap=False).sources() == {
        "rss": {"tier": None, "hook": None, "reason": "no BTF"},
        "rmap": {"tier": None, "hooks": [], "reason": "not requested (--rmap)"},
        "lifecycle": {"hooks": [], "reason": "no BTF"},
    }
