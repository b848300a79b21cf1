"""What works on this machine, what does not, why, and what to do about it.

Every layer is tried for real: the programs that the recorder would use are loaded and attached, and taken away again.
Nothing here raises; what cannot be found out is an answer too.
"""

from __future__ import annotations

import platform
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from memtrack import features, hooks
from memtrack.errors import FeatureError, MemtrackError
from memtrack.facts import KernelFacts
from memtrack.features import Answer, Finding
from memtrack.hooks import Layer, Plan
from memtrack.rmap_hooks import RMAP_FAMILIES, RMAP_TIERS
from memtrack.version import VERSION

# The smallest that all page sizes take: what is tried here records nothing.
RING_BYTES = 256 * 1024

_RSS_ONLY = "record without --rmap, which needs none of this"
_OTHER_KERNEL = "use a kernel that has it"
_BUG = "report this as a bug, with all that doctor says, if tp_btf and fentry are taken as told below"


@dataclass(frozen=True)
class Attempt:
    """What came of loading everything: a plan that the kernel took, or why it took none."""

    plan: Plan | None = None
    problem: MemtrackError | None = None


def collect() -> dict[str, Any]:
    """Try everything, and give the findings as plain data: what ``doctor --json`` prints.

    ``layers`` has the layers rss, lifecycle, rmap and adopt; ``answer`` is "yes", "no" or "could not tell" everywhere.
    """
    facts = features.probe(kallsyms=features.KALLSYMS)
    attempt = try_layers(facts)
    environment = [*features.environment(), features.try_tp_btf(), features.try_fentry()]
    return describe(facts, attempt, environment)


def try_layers(facts: KernelFacts) -> Attempt:
    """Load and attach all layers, and remove them."""
    try:
        from memtrack import loader

        probes = loader.load(facts, rmap=True, ring_bytes=RING_BYTES)
    except MemtrackError as error:
        return Attempt(problem=error)
    except ImportError as error:
        return Attempt(problem=MemtrackError(f"the native extension cannot be loaded: {error}", "reinstall memtrack"))
    except OSError as error:
        return Attempt(problem=MemtrackError(f"cannot load BPF programs: {error}", "reinstall memtrack"))
    probes.close()
    return Attempt(plan=probes.plan)


def describe(facts: KernelFacts, attempt: Attempt, environment: Iterable[Finding]) -> dict[str, Any]:
    """Put into words what was found; no probing."""
    findings = {finding.subject: finding for finding in environment}
    intended = hooks.choose(facts, rmap=True)
    plan = attempt.plan or intended
    fentry = findings.get("fentry")
    # Every hook of the rmap layer is such a program: then it is not the one named that is at fault.
    refuses_all = fentry if intended.rmap.tier and fentry and fentry.answer is Answer.NO else None
    no_btf = findings.get("BTF") if facts.problem else None
    upgrade = (no_btf.remedy if no_btf else None) or _OTHER_KERNEL
    layers = {
        "rss": {"tier": plan.rss.tier, "hook": plan.sources()["rss"]["hook"], **_layer(plan.rss, attempt, upgrade)},
        "lifecycle": {"hooks": list(plan.lifecycle.hooks), **_layer(plan.lifecycle, attempt, upgrade)},
        "rmap": {
            "tier": plan.rmap.tier,
            "hooks": list(plan.rmap.hooks),
            **_layer(
                _explained(plan.rmap, refuses_all),
                attempt,
                f"{refuses_all.remedy}; or {_RSS_ONLY}" if refuses_all else _RSS_ONLY,
            ),
            # What the kernel's BTF promises; whether it keeps that is the layer's answer.
            "families": _families(intended),
        },
        "adopt": {"hooks": list(plan.adopt.hooks), **_layer(plan.adopt, attempt, upgrade)},
    }
    system = platform.uname()
    return {
        "format": "memtrack-doctor",
        "version": 1,
        "memtrack": VERSION,
        "system": system.system,
        "kernel": system.release,
        "machine": system.machine,
        "verdict": _verdict({name: layer["answer"] for name, layer in layers.items()}),
        "layers": layers,
        "environment": [
            {"subject": f.subject, "answer": f.answer.value, "detail": f.detail, "remedy": f.remedy}
            for f in findings.values()
        ],
    }


def _layer(layer: Layer, attempt: Attempt, remedy: str) -> dict[str, str | None]:
    problem = attempt.problem
    if layer.reason:
        # That the kernel lacks something is known even where nothing could be tried.
        bug = attempt.plan and layer.reason.startswith("the kernel refused ") and remedy == _OTHER_KERNEL
        return {"answer": Answer.NO.value, "reason": layer.reason, "remedy": _BUG if bug else remedy}
    if isinstance(problem, FeatureError):
        # The kernel was asked, and took nothing. That doctor should be asked is no remedy here.
        asked = problem.remedy is None or "doctor" in problem.remedy
        return {"answer": Answer.NO.value, "reason": problem.cause, "remedy": _BUG if asked else problem.remedy}
    if problem:
        return {"answer": Answer.UNKNOWN.value, "reason": problem.cause, "remedy": problem.remedy}
    return {"answer": Answer.YES.value, "reason": None, "remedy": None}


def _explained(layer: Layer, cause: Finding | None) -> Layer:
    return replace(layer, reason=f"{layer.reason} ({cause.detail})") if cause and layer.reason else layer


def _families(plan: Plan) -> dict[str, dict[str, Any]]:
    return {
        name: {"generation": choice.generation, "programs": sorted(choice.programs), "reason": choice.reason}
        for name, choice in plan.families.items()
    }


def _verdict(answers: dict[str, str]) -> str:
    yes, unknown = Answer.YES.value, Answer.UNKNOWN.value
    if unknown in (answers["rss"], answers["rmap"]):
        return "could not try whether memtrack can record here"
    if answers["rss"] == answers["rmap"] == answers["lifecycle"] == yes:
        return "memtrack can record here, with and without --rmap"
    if answers["rss"] == answers["lifecycle"] == yes:
        return "memtrack can record here, without --rmap"
    if yes in (answers["rss"], answers["rmap"]):
        return "memtrack can record here, but not everything"
    return "memtrack cannot account memory here"


# --- text -----------------------------------------------------------------------------------------------------------

_LAYERS = {
    "rss": "the kernel's counters, event by event",
    "lifecycle": "fork, exec and exit",
    "rmap": "RSS rebuilt from the reverse map (--rmap)",
    "adopt": "taking in a running process",
}
_WIDTH = 110


def to_text(report: dict[str, Any]) -> str:
    """For people: the findings of `collect`, most important first."""
    lines = [
        f"memtrack {report['memtrack']} on {report['system']} {report['kernel']} {report['machine']}",
        report["verdict"],
        "",
    ]
    told = set()
    for name, layer in report["layers"].items():
        lines += _item("", 11, name, layer["answer"], f"{_LAYERS[name]}{_used(name, layer)}")
        # What stops everything is said once.
        lines += _further(29, layer["reason"], layer["remedy"]) if layer["reason"] not in told else []
        told.add(layer["reason"])
    lines += ["", "hook families of the rmap layer, by the kernel's BTF"]
    families = report["layers"]["rmap"]["families"]
    lines += [] if families else ["  unknown"]
    for name, family in families.items():
        generation = family["generation"]
        answer = f"{generation} ({_since(name, generation)}+)" if generation else Answer.NO.value
        lines += _item("  ", 23, name, answer, ", ".join(family["programs"]) or family["reason"])
    lines += ["", "environment"]
    for finding in report["environment"]:
        lines += _item("  ", 23, finding["subject"], finding["answer"], finding["detail"])
        lines += _further(43, None, finding["remedy"])
    return "\n".join(lines)


def _item(indent: str, width: int, name: str, answer: str, detail: str) -> list[str]:
    head = f"{indent}{name:{width}} {answer:16} "
    return textwrap.wrap(detail, _WIDTH, initial_indent=head, subsequent_indent=" " * len(head))


def _further(indent: int, reason: str | None, remedy: str | None) -> list[str]:
    texts = [reason, f"to do: {remedy}" if remedy else None]
    space = " " * indent
    return [
        line
        for text in texts
        if text
        for line in textwrap.wrap(text, _WIDTH, initial_indent=space, subsequent_indent=space, break_long_words=False)
    ]


def _used(name: str, layer: dict[str, Any]) -> str:
    if name == "rss" and layer["hook"]:
        return f": {layer['hook']}"
    if name == "rmap" and layer["tier"]:
        known = RMAP_TIERS.get(layer["tier"])
        return f": {layer['tier']}{f' (Linux {known.kernels})' if known else ''}"
    return ""


def _since(family: str, generation: str) -> str:
    return next(known.since for known in RMAP_FAMILIES[family] if known.name == generation)
