"""Probes on kernels made for the purpose, on damaged BTF, and on file trees that stand in for /proc and /sys."""

from __future__ import annotations

import importlib
import random
import resource
import subprocess
from pathlib import Path

import pytest

from memtrack import features
from memtrack.features import Answer, Finding, probe
from memtrack.hooks import EXEC_CHARGES, FUNCTIONS, MEMBERS, PREEMPTIBLE_TRACEPOINTS, SLEEPING_SPINLOCKS, TRACEPOINTS
from tests.unit.kernels import compile_btf, kernel_facts

# --- BTF --------------------------------------------------------------------------------------------------------------


def test_facts_of_an_old_kernel() -> None:
    facts = kernel_facts("5.10")
    assert facts.functions == {
        "bpf_iter_task": ("meta", "task"),
        "do_page_add_anon_rmap": ("page", "vma", "address", "flags"),
        "migrate_pages": (),
        "migrate_vma_collect_pmd": ("pmdp", "start", "end", "walk"),
        "page_add_anon_rmap": ("page", "vma", "address", "compound"),
        "page_add_file_rmap": ("page", "compound"),
        "page_add_new_anon_rmap": ("page", "vma", "address", "compound"),
        "page_remove_rmap": ("page", "compound"),
        "remove_migration_pte": ("page", "vma", "addr", "old"),
        "try_to_migrate_one": ("page", "vma", "address", "arg"),
    }
    assert facts.tracepoints == {
        "rss_stat": ("struct mm_struct *", "int", "long int"),
        "sched_process_exec": ("struct task_struct *", "pid_t", "struct linux_binprm *"),
        "sched_process_exit": ("struct task_struct *",),
        "sched_wakeup_new": ("struct task_struct *",),
        "task_newtask": ("struct task_struct *", "long unsigned int"),
    }
    assert facts.members == {
        "mm_struct.rss_stat": "struct mm_rss_stat",
        "percpu_counter.count": "s64",
        "percpu_counter.counters": "s32 *",
        "trace_event_raw_rss_stat.size": "long int",
    }


def test_facts_of_a_new_kernel() -> None:
    facts = kernel_facts("7.3")
    assert facts.functions["folio_add_anon_rmap_ptes"] == ("folio", "page", "nr_pages", "vma", "address", "flags")
    assert facts.functions["folio_remove_rmap_pud"] == ("folio", "page", "vma")
    assert "hugetlb_add_anon_rmap" not in facts.functions
    assert "folio_move_anon_rmap" not in facts.functions
    assert facts.tracepoints["rss_stat"] == ("struct mm_struct *", "int")
    assert facts.tracepoints["task_newtask"] == ("struct task_struct *", "u64")
    assert facts.tracepoints["sched_prepare_exec"] == ("struct task_struct *", "struct linux_binprm *")
    assert facts.members["mm_struct.rss_stat"] == "array percpu_counter"
    assert facts.members["tp_transition_snapshot.srcu_gp"] == "long unsigned int"


def test_rmap_functions_are_found_without_being_asked_for() -> None:
    facts = kernel_facts("7.3", "UNKNOWN_ADD")
    assert facts.functions["folio_add_anon_rmap_pud"] == ("folio", "page", "vma", "address", "flags")
    assert "folio_add_anon_rmap_pud" not in FUNCTIONS


def test_the_running_kernel_is_read_or_the_reason_is_told() -> None:
    facts = probe()
    if facts.problem is None:
        # Every kernel that has BTF at all has these, but for those of newer ones and of PREEMPT_RT.
        assert TRACEPOINTS - {EXEC_CHARGES} <= facts.tracepoints.keys() <= TRACEPOINTS
        assert MEMBERS - {PREEMPTIBLE_TRACEPOINTS, SLEEPING_SPINLOCKS} <= facts.members.keys() <= MEMBERS
    else:
        assert facts.problem.startswith("cannot read the kernel's BTF: ")
        assert not facts.functions


def test_copies_by_the_compiler_are_found_among_the_symbols(raw_btf: bytes, tmp_path: Path) -> None:
    btf = tmp_path / "vmlinux"
    btf.write_bytes(raw_btf)
    symbols = tree(
        tmp_path,
        kallsyms="""\
ffffffff81200000 T folio_remove_rmap_ptes
ffffffff81200100 t folio_remove_rmap_ptes.constprop.0
ffffffff81200200 t folio_remove_rmap_pmd.cold
0000000000000000 t folio_add_new_anon_rmap.part.0
ffffffff81200300 t xfs_rmap_map.isra.0
ffffffff81200400 d folio_add_anon_rmap_pmd.data
ffffffffc0200400 t page_remove_rmap.llvm.123456\t[module]
""",
    )
    assert probe(btf, kallsyms=symbols / "kallsyms").clones == {
        "folio_remove_rmap_ptes.constprop.0",
        "folio_add_new_anon_rmap.part.0",
        "page_remove_rmap.llvm.123456",
    }
    assert probe(btf, kallsyms=tmp_path / "absent").clones == frozenset()


@pytest.fixture(scope="module")
def raw_btf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The contents of the .BTF section, which is what /sys/kernel/btf/vmlinux holds."""
    directory = tmp_path_factory.mktemp("btf")
    output = directory / "btf"
    elf = compile_btf(directory, "7.3")
    subprocess.run(["objcopy", "-O", "binary", "--only-section=.BTF", "--set-section-flags", ".BTF=alloc", elf, output])
    return output.read_bytes()


def test_raw_btf_reads_like_the_same_in_an_elf_file(raw_btf: bytes, tmp_path: Path) -> None:
    path = tmp_path / "vmlinux"
    path.write_bytes(raw_btf)
    assert probe(path) == kernel_facts("7.3")


def test_damaged_btf_is_a_reason_or_fewer_facts(raw_btf: bytes, tmp_path: Path) -> None:
    path = tmp_path / "vmlinux"
    whole = kernel_facts("7.3")
    chance = random.Random(20)
    for _ in range(300):
        damaged = bytearray(raw_btf)
        for _ in range(chance.choice((1, 1, 8))):
            damaged[chance.randrange(len(damaged))] = chance.choice((0, 1, 0xFF, chance.randrange(256)))
        path.write_bytes(damaged)
        facts = probe(path)
        assert facts.problem is None or facts.problem.startswith(f"cannot read BTF from {path}: ")
        assert set(facts.members) <= set(whole.members)
    for size in range(0, len(raw_btf), 37):
        path.write_bytes(raw_btf[:size])
        assert probe(path).problem is not None


@pytest.mark.parametrize("content", [b"", b"root:x:0:0::/root:/bin/sh\n", b"\x9f\xeb\x01", b"\x7fELF"])
def test_a_file_that_is_no_btf(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "vmlinux"
    path.write_bytes(content)
    problem = probe(path).problem
    assert problem is not None
    assert problem.startswith(f"cannot read BTF from {path}: ")
    assert "unknown error" not in problem


def test_no_file() -> None:
    assert probe("/nonexistent").problem == "cannot read BTF from /nonexistent: no such file or directory"


def test_without_the_extension_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise ImportError(f"no {name}")

    monkeypatch.setattr(importlib, "import_module", refuse)
    assert probe().problem == (
        "the native extension cannot be loaded: no memtrack._native (install memtrack from a wheel for this machine)"
    )
    assert features.try_fentry().answer is features.try_tp_btf().answer is Answer.UNKNOWN


# --- trying -----------------------------------------------------------------------------------------------------------


class KernelThatSays:
    """Stands in for the native side: what the kernel answers to the two kinds of program."""

    def __init__(self, fentry: int, tp_btf: int) -> None:
        self._fentry = fentry
        self._tp_btf = tp_btf

    def __call__(self, _path: None) -> KernelThatSays:
        return self

    def __enter__(self) -> KernelThatSays:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def try_fentry(self, _name: str) -> int:
        return self._fentry

    def try_tp_btf(self, _name: str) -> int:
        return self._tp_btf


EPERM, EINVAL, ENOTSUPP = -1, -22, -524


@pytest.mark.parametrize(
    ("fentry", "tp_btf", "answer"),
    [
        (0, 0, Answer.YES),
        (EPERM, 0, Answer.NO),
        (EPERM, EPERM, Answer.UNKNOWN),
        (EINVAL, 0, Answer.NO),
        (ENOTSUPP, 0, Answer.NO),
        (EINVAL, EINVAL, Answer.NO),
    ],
)
def test_a_refusal_is_told_from_a_lack_of_privileges(
    fentry: int, tp_btf: int, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "_open_btf", KernelThatSays(fentry, tp_btf))
    finding = features.try_fentry()
    assert finding.answer is answer
    assert (finding.remedy is None) == (answer is Answer.YES)
    expected = {0: Answer.YES, EPERM: Answer.UNKNOWN}.get(tp_btf, Answer.NO)
    assert features.try_tp_btf().answer is expected


# --- the environment --------------------------------------------------------------------------------------------------


def tree(root: Path, **files: str) -> Path:
    """A file tree; `__` in a name stands for a slash."""
    root.mkdir(exist_ok=True)
    for name, content in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_btf_file(tmp_path: Path) -> None:
    assert features.btf(tree(tmp_path / "with", kernel__btf__vmlinux="\x9f")).answer is Answer.YES
    without = features.btf(tree(tmp_path / "without", kernel__uevent_seqnum="1"))
    assert (without.answer, without.remedy) == (Answer.NO, "use a kernel with CONFIG_DEBUG_INFO_BTF")
    assert features.btf(tree(tmp_path / "unmounted")).answer is Answer.UNKNOWN


# CapEff: CAP_SYS_ADMIN is bit 21, CAP_PERFMON 38, CAP_BPF 39.
@pytest.mark.parametrize(
    ("effective", "answers"),
    [
        ("000001ffffffffff", {"CAP_BPF": "yes", "CAP_PERFMON": "yes", "CAP_SYS_ADMIN": "yes"}),
        ("0000000000200000", {"CAP_BPF": "yes", "CAP_PERFMON": "yes", "CAP_SYS_ADMIN": "yes"}),
        ("000000c000000000", {"CAP_BPF": "yes", "CAP_PERFMON": "yes", "CAP_SYS_ADMIN": "no"}),
        ("0000008000000000", {"CAP_BPF": "yes", "CAP_PERFMON": "no", "CAP_SYS_ADMIN": "no"}),
        ("0000000000000000", {"CAP_BPF": "no", "CAP_PERFMON": "no", "CAP_SYS_ADMIN": "no"}),
    ],
)
def test_capabilities(effective: str, answers: dict[str, str], tmp_path: Path) -> None:
    proc = tree(tmp_path, self__status=f"Name:\tcat\nCapPrm:\t0\nCapEff:\t{effective}\n")
    assert {finding.subject: finding.answer.value for finding in features.capabilities(proc)} == answers


def test_capabilities_of_a_user_namespace_are_none(tmp_path: Path) -> None:
    proc = tree(
        tmp_path, self__status="CapEff:\t000001ffffffffff\n", self__uid_map="         0       1000          1\n"
    )
    assert all(finding.answer is Answer.NO for finding in features.capabilities(proc))
    initial = tree(tmp_path, self__uid_map="         0          0 4294967295\n")
    assert all(finding.answer is Answer.YES for finding in features.capabilities(initial))


@pytest.mark.parametrize("status", [None, "", "CapEff:\n", "CapEff:\tlots\n"])
def test_capabilities_that_nobody_tells(status: str | None, tmp_path: Path) -> None:
    proc = tree(tmp_path) if status is None else tree(tmp_path, self__status=status)
    assert all(finding.answer is Answer.UNKNOWN for finding in features.capabilities(proc))


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        ("[none] integrity confidentiality\n", Answer.YES),
        ("none [integrity] confidentiality\n", Answer.YES),
        ("none integrity [confidentiality]\n", Answer.NO),
        ("something else\n", Answer.UNKNOWN),
        (None, Answer.UNKNOWN),
    ],
)
def test_lockdown(content: str | None, answer: Answer, tmp_path: Path) -> None:
    sys = tree(tmp_path) if content is None else tree(tmp_path, kernel__security__lockdown=content)
    assert features.lockdown(sys).answer is answer


@pytest.mark.parametrize(("text", "count"), [("0-1\n", 2), ("0\n", 1), ("0-511\n", 512), ("0-3,8-11\n", 12)])
def test_possible_cpus(text: str, count: int, tmp_path: Path) -> None:
    assert features.possible_cpus(tree(tmp_path, devices__system__cpu__possible=text)) == count


@pytest.mark.parametrize("text", ["", "many\n"])
def test_possible_cpus_that_nobody_tells(text: str, tmp_path: Path) -> None:
    assert features.possible_cpus(tmp_path) is None
    assert features.possible_cpus(tree(tmp_path, devices__system__cpu__possible=text)) is None


def test_tracefs(tmp_path: Path) -> None:
    assert features.tracefs(tmp_path).answer is Answer.NO
    old = tree(tmp_path / "old", kernel__debug__tracing__events__kmem__rss_stat__id="500\n")
    assert features.tracefs(old) == Finding("tracefs", Answer.YES, f"{old}/kernel/debug/tracing")
    new = tree(tmp_path / "new", kernel__tracing__events__kmem__rss_stat__id="500\n")
    assert features.tracefs(new) == Finding("tracefs", Answer.YES, f"{new}/kernel/tracing")


def test_unprivileged_bpf(tmp_path: Path) -> None:
    assert features.unprivileged_bpf(tmp_path).answer is Answer.UNKNOWN
    proc = tree(tmp_path, sys__kernel__unprivileged_bpf_disabled="2\n")
    assert features.unprivileged_bpf(proc).answer is Answer.NO


@pytest.mark.parametrize(
    ("limits", "answer"),
    [((-1, -1), Answer.YES), ((65536, -1), Answer.YES), ((8388608, 8388608), Answer.UNKNOWN)],
)
def test_memlock(limits: tuple[int, int], answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resource.RLIM_INFINITY == -1
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    assert features.memlock().answer is answer


def test_pid_namespace(tmp_path: Path) -> None:
    assert features.pid_namespace(tmp_path).initial is None
    assert features.pid_namespace(tmp_path).finding().answer is Answer.UNKNOWN
    own = features.pid_namespace()
    assert own.inode == Path("/proc/self/ns/pid").stat().st_ino
    inner = features.PidNamespace(device=4, inode=4026532500)
    assert inner.initial is False
    assert inner.finding().answer is Answer.NO
    assert features.PidNamespace(device=4, inode=features.INITIAL_PID_NAMESPACE).finding().answer is Answer.YES


def test_page_size_is_the_systems() -> None:
    assert features.page_bytes() == resource.getpagesize()


def test_environment_of_nothing_is_no_traceback(tmp_path: Path) -> None:
    findings = features.environment(tmp_path / "proc", tmp_path / "sys")
    assert {finding.answer for finding in findings} == {Answer.YES, Answer.NO, Answer.UNKNOWN}
    subjects = [finding.subject for finding in findings]
    assert len(subjects) == len(set(subjects))
    assert all("\n" not in f"{finding.detail}{finding.remedy}" for finding in findings)
