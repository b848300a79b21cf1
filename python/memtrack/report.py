"""What a recording comes to: as JSON for programs, as text for people."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from memtrack.display import NOT_OBSERVED, duration, shown, signal_name, size
from memtrack.figures import Figures, Peak, Process
from memtrack.layers import Comparison

if TYPE_CHECKING:
    from memtrack.recording import Recording

__all__ = ["json_parts", "shown", "to_json", "to_json_text", "to_text"]

FORMAT: Final = "memtrack-report"
VERSION: Final = 1

_PART_PROCESSES: Final = 256

# A screen has 24 lines; what stands above the processes needs about ten.
_TREE_ROWS: Final = 14
# A command line is told apart by its beginning.
_COMMAND_CHARACTERS: Final = 100
# Deeper nesting would push names off the screen.
_DEEPEST_INDENT: Final = 16
_PROBLEMS: Final = 5


def to_json(recording: Recording) -> dict[str, Any]:
    """Plain data for json.dumps. Bytes, CLOCK_MONOTONIC nanoseconds; None is what was not observed."""
    return {**_head_json(recording), "processes": [_process_json(process) for process in recording.processes]}


def to_json_text(recording: Recording) -> str:
    """The same as text."""
    return "".join(json_parts(recording))


def json_parts(recording: Recording) -> Iterator[str]:
    """That text, some processes at a time: for 100,000 of them it has 46 MiB. One process is on a line.

    json indents in Python, which for many processes takes longer than reading the recording.
    """
    head = json.dumps(_head_json(recording), indent=2)
    yield head.removesuffix("\n}") + ',\n  "processes": ['
    processes = recording.processes
    for start in range(0, len(processes), _PART_PROCESSES):
        lines = [json.dumps(_process_json(process)) for process in processes[start : start + _PART_PROCESSES]]
        yield (",\n    " if start else "\n    ") + ",\n    ".join(lines)
    yield "\n  ]\n}" if processes else "]\n}"


def _head_json(recording: Recording) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "command": recording.command,
        "status": {"exit_code": recording.status.exit_code, "signal": recording.status.signal},
        "complete": recording.complete,
        "problems": recording.problems,
        "doubts": recording.doubts,
        "lost_events": recording.lost_events,
        "losses": recording.losses,
        "page_size": recording.page_size,
        "start_ns": recording.start_ns,
        "clock_offset_ns": recording.header.get("clock_offset_ns"),
        "duration_ns": recording.duration_ns,
        "sources": recording.sources,
        "peak": peak_json(recording.peak),
        "rmap_peak": recording.rmap_peak and peak_json(recording.rmap_peak),
        "layers": recording.layers and _layers_json(recording.layers),
        "processes_left": recording.processes_left,
        "events": recording.event_counts,
    }


def peak_json(peak: Peak) -> dict[str, int | None]:
    """A tree's peak, as reports and trailers have it."""
    return {**_own_peak_json(peak), "processes": peak.processes}


def _process_json(process: Process) -> dict[str, Any]:
    return {
        "pid": process.pid,
        "ppid": process.ppid,
        "comm": process.comm,
        "state": process.state,
        "seen_ns": process.seen_ns,
        "start_ns": process.start_ns,
        "exec_ns": process.exec_ns,
        "end_ns": process.end_ns,
        "exit_code": process.exit_code,
        "signal": process.signal,
        "peak": _own_peak_json(process.peak),
        "last": _figures_json(process.last),
        "rmap_peak": process.rmap_peak and _own_peak_json(process.rmap_peak),
        "rmap_last": process.rmap_last and _figures_json(process.rmap_last),
    }


def _layers_json(comparison: Comparison) -> dict[str, Any]:
    return {
        "bound_bytes": comparison.bound_bytes,
        "differ": [
            {
                "pid": difference.pid,
                "figure": difference.figure,
                "rss_bytes": difference.rss_bytes,
                "rmap_bytes": difference.rmap_bytes,
            }
            for difference in comparison.differences
        ],
    }


def _own_peak_json(peak: Peak) -> dict[str, int | None]:
    """Of a process there is one, so how many lived is not said."""
    return {**_figures_json(peak), "at_ns": peak.at_ns}


def _figures_json(figures: Figures) -> dict[str, int | None]:
    # dataclasses.asdict takes longer than reading the recording does.
    return {
        "rss_bytes": figures.rss_bytes,
        "anon_bytes": figures.anon_bytes,
        "file_bytes": figures.file_bytes,
        "shmem_bytes": figures.shmem_bytes,
        "swap_bytes": figures.swap_bytes,
    }


def to_text(recording: Recording) -> str:
    """About one screen. Every name in it is safe to print."""
    labelled = [
        ("command", _command(recording)),
        ("ended", _ending(recording)),
        ("peak", _peak_text(recording.peak, recording)),
    ]
    if recording.rmap_peak is not None:
        labelled.append(("rmap peak", _peak_text(recording.rmap_peak, recording)))
    if recording.layers and recording.layers.differences:
        labelled.append(("layers differ", _layers(recording.layers)))
    labelled.append(("lost", _lost(recording)))
    for problem in recording.problems[:_PROBLEMS]:
        labelled.append(("incomplete", shown(problem)))
    if len(recording.problems) > _PROBLEMS:
        labelled.append(("", f"and {len(recording.problems) - _PROBLEMS} problems more"))
    labelled += [("doubt", shown(doubt)) for doubt in recording.doubts[:_PROBLEMS]]
    labelled += [(f"{layer} hooks", text) for layer, text in _hooks(recording)]
    lines = [f"{label:<16}{text}".rstrip() for label, text in labelled]
    return "\n".join([*lines, "", *_tree(recording)])


def _command(recording: Recording) -> str:
    if not recording.command:
        # A Tracker's, to whom none was named: with several commands, or with adopted processes.
        first = recording.processes[0].comm if recording.processes else None
        return f"not named (it began with {shown(first)})" if first else "not named"
    text = shlex.join(shown(argument) for argument in recording.command)
    return text if len(text) <= _COMMAND_CHARACTERS else f"{text[:_COMMAND_CHARACTERS]} ..."


def _ending(recording: Recording) -> str:
    if recording.status.signal is not None:
        how = f"by {signal_name(recording.status.signal)}"
    elif recording.status.exit_code is not None:
        how = f"with exit status {recording.status.exit_code}"
    else:
        how = "not known"
    text = f"{how}, {lasted}" if (lasted := _lasted(recording)) else how
    left = recording.processes_left
    if not left:
        return text
    fate = "of the tree lived on" if recording.trailer is not None else "not seen to end"
    return f"{text}; {_count(left, 'process', 'processes')} {fate}"


def _lasted(recording: Recording) -> str | None:
    """How long the command ran, where one was named and its end is known; else how long was recorded."""
    first = recording.processes[0] if recording.command and recording.processes else None
    if first and first.start_ns is not None and first.end_ns is not None:
        return f"after {duration(max(0, first.end_ns - first.start_ns))}"
    return None if recording.duration_ns is None else f"recorded for {duration(recording.duration_ns)}"


def _peak_text(peak: Peak, recording: Recording) -> str:
    if peak.rss_bytes is None:
        return NOT_OBSERVED
    text = f"{size(peak.rss_bytes)} = {size(peak.anon_bytes)} anon + {size(peak.file_bytes)} file"
    text += f" + {size(peak.shmem_bytes)} shmem, at {_at(peak.at_ns, recording)}"
    if peak.processes is not None:  # a page that several of them map counts as often: it is not PSS
        text += ", 1 process" if peak.processes == 1 else f", summed over {peak.processes:,} processes"
    return f"{text}; and {size(peak.swap_bytes)} in swap" if peak.swap_bytes else text


def _lost(recording: Recording) -> str:
    if not recording.lost_events:
        if recording.lost_events is None:
            return "not known"
        return "nothing" if recording.complete else "nothing while it was recorded"
    events = _count(recording.lost_events, "event", "events")
    ways = ", ".join(f"{count:,} {shown(way)}" for way, count in (recording.losses or {}).items() if count)
    return f"{events}{f' ({ways})' if ways else ''}; after a loss figures start anew from the kernel's counters"


def _layers(comparison: Comparison) -> str:
    most, others = comparison.differences[0], len(comparison.differences) - 1
    whose = "the tree's" if most.pid is None else f"of {shown(most.comm or '')} ({most.pid}) the"
    text = f"{whose} {most.figure} is {size(most.rss_bytes)} by rss and {size(most.rmap_bytes)} by rmap"
    if others:
        text += f", and {_count(others, 'figure', 'figures')} more"
    return f"{text}; the kernel explains {size(comparison.bound_bytes)} for each thread at work"


def _hooks(recording: Recording) -> list[tuple[str, str]]:
    rss, rmap, lifecycle = (recording.sources[layer] for layer in ("rss", "rmap", "lifecycle"))
    return [
        ("rss", _source(rss["hook"], rss["reason"])),
        ("lifecycle", _source(", ".join(lifecycle["hooks"]), lifecycle["reason"])),
        ("rmap", _source(rmap["tier"], rmap["reason"])),
    ]


def _source(what: str | None, reason: str | None) -> str:
    text = shown(what) if what else "off"
    return f"{text} ({shown(reason)})" if reason else text


def _at(at_ns: int | None, recording: Recording) -> str:
    if at_ns is None or recording.start_ns is None:
        return NOT_OBSERVED
    return duration(max(0, at_ns - recording.start_ns))


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


# --- the tree of processes --------------------------------------------------------------------------------------------


def _tree(recording: Recording) -> list[str]:
    processes = recording.processes
    if not processes:
        return ["no process was seen"]
    parents = _parents(processes)
    kept = _largest(processes, parents)
    swap = any(process.peak.swap_bytes for process in processes)
    rmap = recording.rmap_peak is not None
    rows = [_titles(swap, rmap)]
    for index, depth in _depth_first(parents):
        if index in kept:
            rows.append(_row(processes[index], depth, recording, swap, rmap))
    lines = _aligned(rows)
    hidden = [process for index, process in enumerate(processes) if index not in kept]
    if hidden:
        largest = max((process.peak.rss_bytes or 0 for process in hidden), default=0)
        lines.append(
            f"and {_count(len(hidden), 'process', 'processes')} more, none above {size(largest)} (--json has all)"
        )
    return lines


def _parents(processes: list[Process]) -> list[int | None]:
    """For each process the index of its parent: the last one before it with that pid, since pids are used again."""
    latest: dict[int, int] = {}
    parents: list[int | None] = []
    for index, process in enumerate(processes):
        parents.append(None if process.ppid is None else latest.get(process.ppid))
        latest[process.pid] = index
    return parents


def _largest(processes: list[Process], parents: list[int | None]) -> set[int]:
    """The processes with the largest peaks, as many as fit together with their ancestors."""
    kept: set[int] = set()
    for index in sorted(range(len(processes)), key=lambda index: -(processes[index].peak.rss_bytes or 0)):
        line: set[int] = set()
        ancestor: int | None = index
        while ancestor is not None and ancestor not in kept and len(line) <= _TREE_ROWS:
            line.add(ancestor)
            ancestor = parents[ancestor]
        if len(kept) + len(line) <= _TREE_ROWS:
            kept |= line
        elif len(kept) == _TREE_ROWS:
            break
    return kept


def _depth_first(parents: list[int | None]) -> list[tuple[int, int]]:
    """Indexes with their depth, each process before its children, without recursion: a tree may be one long line."""
    children: dict[int | None, list[int]] = {}
    for index, parent in enumerate(parents):
        children.setdefault(parent, []).append(index)
    order: list[tuple[int, int]] = []
    waiting = [(index, 0) for index in reversed(children.get(None, []))]
    while waiting:
        index, depth = waiting.pop()
        order.append((index, depth))
        waiting += [(child, depth + 1) for child in reversed(children.get(index, []))]
    return order


def _titles(swap: bool, rmap: bool) -> list[str]:
    return [
        "PEAK",
        "ANON",
        "FILE",
        "SHMEM",
        *(["SWAP"] if swap else []),
        *(["RMAP PEAK"] if rmap else []),
        "AT",
        "LIVED",
        "END",
        "PID",
        "COMMAND",
    ]


def _row(process: Process, depth: int, recording: Recording, swap: bool, rmap: bool) -> list[str]:
    peak = process.peak
    return [
        size(peak.rss_bytes),
        size(peak.anon_bytes),
        size(peak.file_bytes),
        size(peak.shmem_bytes),
        *([size(peak.swap_bytes)] if swap else []),
        *([size(process.rmap_peak.rss_bytes if process.rmap_peak else None)] if rmap else []),
        _at(peak.at_ns, recording),
        _lived(process, recording),
        _end(process, process.last),
        str(process.pid),
        "  " * min(depth, _DEEPEST_INDENT) + (shown(process.comm) or NOT_OBSERVED),
    ]


def _lived(process: Process, recording: Recording) -> str:
    end_ns = recording.end_ns if process.state == "alive" else process.end_ns
    if process.start_ns is None or end_ns is None:
        return NOT_OBSERVED
    return duration(max(0, end_ns - process.start_ns))


def _end(process: Process, last: Figures) -> str:
    if process.state == "alive":
        return f"alive, {size(last.rss_bytes)}"
    if process.signal is not None:
        return signal_name(process.signal)
    return NOT_OBSERVED if process.exit_code is None else str(process.exit_code)


def _aligned(rows: list[list[str]]) -> list[str]:
    """Right-aligned, two spaces apart; the last column, which has the names, is as long as it likes."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return [
        "  ".join([*(cell.rjust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    ]
