"""What a kernel has, as far as memtrack asks: read from its BTF by features.py, decided upon in hooks.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class KernelFacts:
    """What a kernel's BTF says of the names that matter here; what is absent from a mapping, the kernel lacks."""

    functions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The names of each function's parameters."""
    tracepoints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The types of each tracepoint's arguments, as in ``struct mm_struct *``; BTF has no names for them."""
    members: Mapping[str, str] = field(default_factory=dict)
    """The type of each struct member, as in ``{"mm_struct.rss_stat": "array percpu_counter"}``."""
    clones: frozenset[str] = frozenset()
    """Copies that the compiler made of functions, as in ``page_remove_rmap.constprop.0``; callers of a copy go past a
    hook on the function. Empty where nobody looked."""
    problem: str | None = None
    """Why nothing is known at all, or None."""
