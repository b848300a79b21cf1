"""What build.py makes: the BPF object and the extension, read as files."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from memtrack import hooks, rmap_hooks
from memtrack.facts import KernelFacts

PACKAGE = Path(hooks.__file__).parent
OBJECT = PACKAGE / "rss.bpf.o"
EXTENSION = PACKAGE / "_native.abi3.so"


@pytest.fixture
def bpf_object() -> Iterator[Any]:
    with OBJECT.open("rb") as file:
        yield ELFFile(file)


@pytest.fixture
def extension() -> Iterator[Any]:
    with EXTENSION.open("rb") as file:
        yield ELFFile(file)


STANDINS = {name: hook for standins in hooks.STANDINS.values() for name, hook in standins.items()}


def programs(elf: Any) -> dict[str, str]:
    """Each BPF program and the section it is in, which says what it hooks."""
    found = {}
    for symbol in elf.get_section_by_name(".symtab").iter_symbols():
        if symbol["st_info"]["type"] == "STT_FUNC" and symbol["st_shndx"] != "SHN_UNDEF":
            section = elf.get_section(symbol["st_shndx"]).name
            if section != ".text":  # what programs call
                found[symbol.name] = section
    return found


def families() -> list[tuple[str, str]]:
    """All pairs of a hook family, or a layer that is its own family, and a program of it."""
    pairs = [("lifecycle", name) for name in hooks.LIFECYCLE_LOSSES]
    pairs.append(("rss", hooks.EXEC_CHARGES))
    layers = dict.fromkeys(hooks.LIFECYCLE_LOSSES, "lifecycle") | {hooks.EXEC_CHARGES: "rss"}
    pairs += [(layers[name], standin) for name, standins in hooks.STANDINS.items() for standin in standins]
    pairs.append(("adopt", "adopt_task"))
    pairs += [("rss", name) for tier in hooks.RSS_TIERS.values() for name in tier.programs]
    everything = KernelFacts(dict.fromkeys(hooks.FUNCTIONS, ()), dict.fromkeys(hooks.TRACEPOINTS, ()))
    for family, generations in rmap_hooks.RMAP_FAMILIES.items():
        for generation in generations:
            pairs += [(family, name) for name in generation.programs(everything)]
    return sorted(set(pairs))


def test_every_program_belongs_to_exactly_one_family(bpf_object: Any) -> None:
    belongs = Counter(name for _, name in families())
    assert {name: belongs[name] for name in programs(bpf_object)} == dict.fromkeys(programs(bpf_object), 1)


def test_every_program_that_can_be_chosen_is_there(bpf_object: Any) -> None:
    assert {name for _, name in families()} <= set(programs(bpf_object))


def test_sections_hook_what_the_families_say(bpf_object: Any) -> None:
    family_of = {name: family for family, name in families()}
    for name, section in programs(bpf_object).items():
        kind, _, hook = section.partition("/")
        if family_of[name] == "lifecycle":
            assert section == f"tp_btf/{STANDINS.get(name, name)}"
        elif name in rmap_hooks.TRACEPOINT_PROGRAMS:
            assert section == f"tp_btf/{rmap_hooks.TRACEPOINT_PROGRAMS[name]}"
        elif family_of[name] in rmap_hooks.RMAP_FAMILIES:
            name = name.removesuffix("_again")
            assert (kind, hook) == ("fexit" if name.endswith("_exit") else "fentry", name.removesuffix("_exit"))


def test_object_has_btf_and_no_dwarf(bpf_object: Any) -> None:
    sections = {section.name for section in bpf_object.iter_sections()}
    assert {".BTF", ".BTF.ext", "license"} <= sections
    assert not [name for name in sections if name.startswith(".debug")]


def test_object_may_call_what_the_kernel_keeps_for_gpl(bpf_object: Any) -> None:
    assert bpf_object.get_section_by_name("license").data().rstrip(b"\0") == b"Dual MIT/GPL"


def test_nothing_built_names_the_place_it_was_built_in() -> None:
    place = str(Path(__file__).resolve().parents[2]).encode()
    assert place not in OBJECT.read_bytes()
    assert place not in EXTENSION.read_bytes()


def test_extension_knows_its_object() -> None:
    from memtrack._native import ffi, lib

    digest = ffi.string(lib.memtrack_object_sha256).decode()
    assert digest == hashlib.sha256(OBJECT.read_bytes()).hexdigest()


def test_extension_needs_nothing_but_the_c_library(extension: Any) -> None:
    needed = [tag.needed for tag in extension.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")]
    assert all(name.startswith(("libc.so.", "libpthread.so.", "ld-linux")) for name in needed), needed


def test_extension_shows_only_its_entry_point(extension: Any) -> None:
    # A libbpf of somebody else in the same process must not find ours.
    shown = [
        symbol.name
        for symbol in extension.get_section_by_name(".dynsym").iter_symbols()
        if symbol["st_shndx"] != "SHN_UNDEF"
    ]
    assert shown == ["PyInit__native"]


def test_extension_keeps_to_the_limited_api(extension: Any) -> None:
    wanted = [symbol.name for symbol in extension.get_section_by_name(".dynsym").iter_symbols()]
    private = [name for name in wanted if name.startswith("_Py") and name != "_Py_NoneStruct"]
    # In the limited API since 3.2, for macros.
    assert set(private) <= {"_Py_Dealloc", "_Py_TrueStruct", "_Py_FalseStruct"}
