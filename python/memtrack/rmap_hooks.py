"""The kernel's reverse-map functions, as data: which there are, by family and generation, and what they take.

Which generation is used on a kernel, and whether it is sound there, is decided in hooks.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from memtrack.facts import KernelFacts

# The parameters that the program on each function reads, in their places; what follows them does not matter.
RMAP_PROTOTYPES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "folio_add_new_anon_rmap": ("folio", "vma", "address"),
        "folio_add_anon_rmap_ptes": ("folio", "page", "nr_pages", "vma", "address"),
        "folio_add_anon_rmap_pmd": ("folio", "page", "vma", "address"),
        "folio_add_file_rmap_ptes": ("folio", "page", "nr_pages", "vma"),
        "folio_add_file_rmap_pmd": ("folio", "page", "vma"),
        "folio_add_file_rmap_pud": ("folio", "page", "vma"),
        "folio_add_file_rmap_range": ("folio", "page", "nr_pages", "vma", "compound"),
        "folio_remove_rmap_ptes": ("folio", "page", "nr_pages", "vma"),
        "folio_remove_rmap_pmd": ("folio", "page", "vma"),
        "folio_remove_rmap_pud": ("folio", "page", "vma"),
        "page_add_new_anon_rmap": ("page", "vma", "address"),
        # Since Linux kernel commit f1e2db12e45b ("mm/rmap: remove do_page_add_anon_rmap()", in v5.19) `flags`; before,
        # `compound`, whose bits mean something else.
        "page_add_anon_rmap": ("page", "vma", "address", "flags"),
        "page_add_file_rmap": ("page", "vma", "compound"),
        "page_remove_rmap": ("page", "vma", "compound"),
    }
)

# The same for the functions that put pages on the move and back. They are called by pointer only, so that no copy that
# the compiler made of one goes past its hook.
MIGRATION_PROTOTYPES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "try_to_migrate_one": ("folio", "vma"),
        "remove_migration_pte": ("folio", "vma"),
        "migrate_vma_collect_pmd": ("pmdp", "start", "end", "walk"),
    }
)
PROTOTYPES = {**RMAP_PROTOTYPES, **MIGRATION_PROTOTYPES}


@dataclass(frozen=True)
class Generation:
    """One form that the kernel's functions of a family had, whole: what it lacks, it cannot do without."""

    name: str
    since: str
    """The first kernel that has it, for messages."""
    functions: tuple[str, ...]
    optional: tuple[str, ...] = ()
    """Hooked where the kernel has them, and not missed where it does not."""
    fexit: tuple[str, ...] = ()
    """Of `functions` and `optional`, those whose return is hooked as well, by the program NAME_exit."""
    twice: bool = False
    """Whether each program has a twin, NAME_again, that does the same in case the kernel skips one."""
    tracepoints: tuple[str, ...] = ()
    """Programs of the family that sit on tracepoints, see TRACEPOINT_PROGRAMS; where the kernel has those."""
    bypasses: tuple[str, ...] = ()
    """Functions that do the work of `functions` for callers of their own; where one exists, the hooks would miss it."""

    def programs(self, facts: KernelFacts) -> frozenset[str]:
        names = self.names(facts.functions)
        traced = (name for name in self.tracepoints if TRACEPOINT_PROGRAMS[name] in facts.tracepoints)
        programs = [*names, *(f"{name}_exit" for name in names if name in self.fexit)]
        twins = [f"{name}_again" for name in programs if self.twice]
        return frozenset((*programs, *twins, *traced))

    def names(self, has: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in (*self.functions, *self.optional) if name in self.functions or name in has)


TRACEPOINT_PROGRAMS: Mapping[str, str] = MappingProxyType({"migration_drops": "rss_stat"})
"""Programs of the rmap layer that are on a tracepoint, and on which."""

RMAP_FAMILIES: Mapping[str, tuple[Generation, ...]] = MappingProxyType(
    {
        "remove": (
            Generation("folio", "6.8", ("folio_remove_rmap_ptes", "folio_remove_rmap_pmd"), ("folio_remove_rmap_pud",)),
            Generation("page", "5.19", ("page_remove_rmap",)),
        ),
        "file": (
            Generation(
                "folio", "6.8", ("folio_add_file_rmap_ptes", "folio_add_file_rmap_pmd"), ("folio_add_file_rmap_pud",)
            ),
            # page_add_file_rmap calls folio_add_file_rmap_range or holds a copy of it, as the compiler pleased, and
            # others call the latter directly: entry and exit of the first mark what the second must not count again.
            Generation(
                "range", "6.6", ("folio_add_file_rmap_range", "page_add_file_rmap"), fexit=("page_add_file_rmap",)
            ),
            Generation("page", "5.19", ("page_add_file_rmap",)),
        ),
        "anon": (
            Generation("folio", "6.8", ("folio_add_anon_rmap_ptes", "folio_add_anon_rmap_pmd")),
            Generation("page", "5.19", ("page_add_anon_rmap",), bypasses=("do_page_add_anon_rmap",)),
        ),
        "anon_new": (
            Generation("folio", "6.3", ("folio_add_new_anon_rmap",)),
            Generation("page", "5.19", ("page_add_new_anon_rmap",)),
        ),
        # Not changes but what they mean: a page that migrates leaves the reverse map and comes back, and a fork in
        # between copies it all the same. Without these hooks the child's sum would be off for good.
        "migration": (
            Generation(
                "folio",
                "5.19",
                ("try_to_migrate_one", "remove_migration_pte"),
                ("migrate_vma_collect_pmd",),  # CONFIG_DEVICE_MIGRATION
                fexit=tuple(MIGRATION_PROTOTYPES),
                twice=True,
                tracepoints=("migration_drops",),
            ),
        ),
    }
)
"""By family name, newest generation first. When several families are unsound, the reason of the first is told."""


NOTHING_WITHOUT: Mapping[str, str] = MappingProxyType({"migration": "migrate_pages"})
"""Families that have nothing to see on a kernel without this function: here, one built without CONFIG_MIGRATION."""


@dataclass(frozen=True)
class RmapTier:
    """What kernels of one age have in all families together."""

    kernels: str
    """The kernels known to have it, for messages."""
    generations: Mapping[str, str]


RMAP_TIERS: Mapping[str, RmapTier] = MappingProxyType(
    {
        name: RmapTier(kernels, dict(zip(("anon_new", "anon", "file", "remove"), generations, strict=True)))
        for name, kernels, generations in (
            ("folio", "6.8 and later", ("folio", "folio", "folio", "folio")),
            ("folio-range", "6.6 and 6.7", ("folio", "page", "range", "page")),
            ("folio-new", "6.3 to 6.5", ("folio", "page", "page", "page")),
            ("page", "5.19 to 6.2", ("page", "page", "page", "page")),
        )
    }
)
# Families are sound each for itself, so a kernel with a combination of its own (a backport) is served all the same.
MIXED_TIER = "mixed"

# A function of this form that we do not know may add or remove what no hook of ours sees.
_RMAP_CHANGE = re.compile(r"(folio|page)_(add|remove)_\w*rmap\w*")
RMAP_KNOWN = frozenset(RMAP_PROTOTYPES) | {
    # Static parts of page_remove_rmap, until v6.1; nothing else calls them.
    "page_remove_anon_compound_rmap",
    "page_remove_file_rmap",
}


def changes_rmap(function: str) -> bool:
    """Whether a kernel function by its name adds or removes reverse mappings of ordinary pages."""
    return _RMAP_CHANGE.fullmatch(function) is not None
