"""What the documents say, held against the code: commands, options, examples, layouts, names and numbers.

`python -m tests.unit.test_docs` writes the tables of docs/support-matrix.md anew, the second one once the suite has run
on every kernel of the matrix.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from cffi import FFI

import memtrack
from memtrack import cli, container, errors, events, hooks, loader, recorder, rmap_hooks, timeline
from memtrack.events import EventType, Figure, MarkKind, Member
from memtrack.timeline import Figures, Peak, Process
from memtrack.tracefile import Writer
from tests.bpf.rows import ROWS
from tests.vmtest import matrix, results, table
from tests.vmtest.table import Column

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
README, FORMAT, LIBRARY = ROOT / "README.md", ROOT / "docs" / "format.md", ROOT / "docs" / "library.md"
# The others also name options of make's targets.
OF_MEMTRACK = [README, *(ROOT / "docs" / f"{name}.md" for name in ("accuracy", "format", "library", "recorder"))]
MATRIX = ROOT / "docs" / "support-matrix.md"
GOLDEN = ROOT / "tests" / "data" / "version-1.zst"


# --- reading the documents ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """Code between fences, or indented; `language` is empty where none is named."""

    document: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def blocks(path: Path) -> Iterator[Block]:
    fence: list[str] | None = None
    indented: list[str] = []
    start, language = 0, ""
    for number, line in enumerate([*path.read_text().splitlines(), ""], 1):
        if line.startswith("```"):
            if fence is None:
                fence, start, language = [], number + 1, line[3:]
            else:
                yield Block(path.name, start, language, "\n".join(fence) + "\n")
                fence = None
        elif fence is not None:
            fence.append(line)
        elif line.startswith("    "):
            start = start if indented else number
            indented.append(line.strip())
        elif indented:
            yield Block(path.name, start, "", "\n".join(indented) + "\n")
            indented = []


def prose(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def inline_code(path: Path) -> list[str]:
    return [" ".join(code.split()) for code in named(prose(path.read_text()))]


def section(path: Path, title: str) -> str:
    """From a heading to the next of its level or above."""
    found = re.search(rf"^(#+) {re.escape(title)}$", path.read_text(), re.MULTILINE)
    assert found, f"{path.name} has no section {title}"
    rest = path.read_text()[found.end() :]
    return re.split(rf"^#{{1,{len(found[1])}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def tables(text: str) -> list[list[list[str]]]:
    """Tables of rows of cells, without their titles."""
    found: list[list[list[str]]] = []
    for paragraph in re.split(r"\n\s*\n", text):
        lines = [line for line in paragraph.splitlines() if line.startswith("|")]
        if lines:
            cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
            found.append([[cell.replace("\\|", "|") for cell in row] for row in cells[2:]])
    return found


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def names_of(table: list[list[str]]) -> list[str]:
    return [name for row in table for name in named(row[0])]


# --- commands -------------------------------------------------------------------------------------------------------


def subcommands() -> Mapping[str, argparse.ArgumentParser]:
    (action,) = (a for a in cli._parser()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(action.choices)


def options(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Each option as the documents write it, by what it is called."""
    found = {}
    for action in parser._actions:
        for name in action.option_strings:
            found[name] = name if action.nargs == 0 else f"{name} {action.metavar}"
    return {name: text for name, text in found.items() if name not in ("-h", "--help")}


def command_lines() -> list[tuple[str, str]]:
    lines = []
    for path in DOCUMENTS:
        joined = [block.text.replace("\\\n", " ") for block in blocks(path) if block.language in ("", "sh")]
        for text in [*"".join(joined).splitlines(), *inline_code(path)]:
            found = re.search(r"python -m memtrack (record .*|report .*|doctor.*)", text)
            if found and "..." not in text:
                lines.append((path.name, found[0].removeprefix("python -m memtrack ").split(" (python")[0].rstrip(")")))
    return lines


def test_there_are_command_lines_to_test() -> None:
    assert {line.split()[0] for _, line in command_lines()} == set(subcommands())


@pytest.mark.parametrize(("document", "line"), command_lines())
def test_command_lines_parse(document: str, line: str) -> None:
    parsed = cli._parser().parse_args(shlex.split(line.replace("[ARGUMENT...]", "")))
    if line.startswith("record"):
        assert parsed.command, document


def test_options_in_the_text_exist() -> None:
    known = {name: options(parser) for name, parser in subcommands().items()}
    everywhere = {name for names in known.values() for name in names} | {"--help", "--version"}
    for path in DOCUMENTS:
        for code in inline_code(path):
            subcommand, *rest = code.split()
            used = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", code))
            if subcommand in known and rest:
                assert used <= set(known[subcommand]), f"{path.name}: {code}"
            elif code.startswith("-") and path in OF_MEMTRACK:
                assert used <= everywhere, f"{path.name}: {code}"


def test_the_readme_lists_the_options_of_record() -> None:
    (table,) = (t for t in tables(section(README, "Recording")) if t[0][0].startswith("`-"))
    assert sorted(names_of(table)) == sorted(options(subcommands()["record"]).values())


def test_numbers_are_the_codes() -> None:
    text = " ".join(README.read_text().split())
    assert f"{loader.MAX_PROCESSES} processes at one time" in text
    assert f"{recorder.RING_BYTES >> 20} MiB (up to {recorder.RING_BYTES_MOST >> 20} MiB from" in text
    assert f"{2 * recorder.RING_CPUS} CPUs on), or less where the machine has less than" in text
    assert f"less than {recorder.RING_BYTES * recorder.RING_PART_OF_MEMORY >> 30} GiB" in text
    assert all(f"`{name}=1`" in text for name in recorder.RMAP_VARIABLES)
    assert f"more than {loader.CPUS_MAX} possible CPUs" in " ".join((ROOT / "docs" / "recorder.md").read_text().split())
    text = " ".join(FORMAT.read_text().split())
    assert f"{container.FRAME_EVENTS:,} records ({container.FRAME_EVENTS * events.RECORD_BYTES:,} bytes)" in text
    assert f"{container.MAX_FRAME_BYTES >> 20} MiB" in text
    assert f"At most {container.MAX_METADATA_BYTES >> 20} MiB each" in text
    assert f"at most {timeline._LOOKAHEAD} records on" in text
    magics = (container.HEADER_MAGIC, container.TRAILER_MAGIC, container.SEEK_TABLE_MAGIC, container.SEEK_FOOTER_MAGIC)
    assert all(f"0x{magic:08X}" in text for magic in magics)


# --- examples -------------------------------------------------------------------------------------------------------

EXAMPLES = [block for path in DOCUMENTS for block in blocks(path) if block.language == "python"]
RECORDING_EXAMPLES = [block for block in EXAMPLES if "import memtrack" in block.text]


def attributes(block: Block) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield node.value.id, node.attr


@pytest.mark.parametrize("block", RECORDING_EXAMPLES, ids=str)
def test_examples_use_names_that_exist(block: Block) -> None:
    with memtrack.open(GOLDEN) as recording:
        kinds: dict[str, object] = {
            "memtrack": memtrack,
            "recording": recording,
            "process": recording.processes[0],
            "peak": recording.peak,
            "top": recording.peak,
            "held": recording.processes[0].last,
            "tracker": memtrack.Tracker,
        }
    compile(block.text, str(block), "exec")
    for name, attribute in attributes(block):
        if name in kinds:
            assert attribute in dir(kinds[name]) or attribute in memtrack.__all__, f"{name}.{attribute}"


@pytest.mark.bpf
@pytest.mark.parametrize("name", sorted({block.document for block in RECORDING_EXAMPLES}))
def test_examples_run(name: str, tmp_path: Path) -> None:
    """Each document's in their order, in one folder: later ones may read what earlier ones wrote."""
    for block in RECORDING_EXAMPLES:
        if block.document == name:
            done = subprocess.run([sys.executable, "-c", block.text], cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == 0, f"{block}: {done.stderr}"
            assert done.stdout, block


def test_a_recording_can_be_read_as_shown(tmp_path: Path) -> None:
    (example,) = (block for block in EXAMPLES if block.document == FORMAT.name)
    header = {"page_size": 4096, "command": ["job"], "start_ns": 0}
    script: list[events.Event] = [events.Exec(EventType.EXEC, 1, 7, 7, "job")]
    script += [Figure(EventType.SYNC, 2, 7, 7, member, 4096 * (member + 1)) for member in Member]
    script += [Figure(EventType.RSS, 3 + i, 7, 7, Member.ANON, 8192 * i) for i in range(100)]
    script += [Figure(EventType.RSS, 200, 7, 7, Member.SWAP, 1 << 30), events.Exec(EventType.EXEC, 201, 7, 7, "next")]
    script += [Figure(EventType.SYNC, 202, 7, 7, member, 4096) for member in Member]
    script += [events.Exit(EventType.EXIT, 203, 7, 7, 0), events.Mark(EventType.MARK, 204, 7, 7, MarkKind.END, "end")]
    path = tmp_path / "recording.zst"
    with path.open("wb") as file:
        writer = Writer(file, header)
        writer.write_frame(b"".join(events.encode(event, events.NATIVE) for event in script))
        writer.finish({"lost_events": 0})
    done = subprocess.run(
        [sys.executable, "-c", example.text, str(path)], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == f"['job'] {memtrack.open(path).peak.rss_bytes}\n"


# --- the format -----------------------------------------------------------------------------------------------------

UNION = {
    "REALLOC": "realloc",
    "RSS": "rss",
    "SYNC": "rss",
    "RMAP": "rmap",
    "FORK": "fork",
    "EXEC": "exec",
    "EXIT": "exit",
    "LOST": "lost",
    "MARK": "mark",
    "ADOPT": "adopt",
    "PEAK": "peak",
}
C_TYPES = {
    "uint8_t": "u8",
    "uint32_t": "u32",
    "int32_t": "s32",
    "uint64_t": "u64",
    "int64_t": "s64",
    "char[16]": "char[16]",
    "char[20]": "char[20]",
}
WITHOUT_MEANING = {"zero", "reserved"}


@pytest.fixture(scope="module")
def header() -> FFI:
    ffi = FFI()
    text = (ROOT / "bpf" / "event.h").read_text()
    ffi.cdef("\n".join(line for line in text.splitlines() if not line.startswith("#")))
    return ffi


def test_records_are_laid_out_as_the_header_says(header: FFI) -> None:
    head, payloads = tables(section(FORMAT, "Event record"))
    assert [(int(row[0]), row[1]) for row in head[:-1]] == [
        (header.offsetof("struct event", name), f"`{C_TYPES[field.type.cname]} {name}`")
        for name, field in header.typeof("struct event").fields
        if field.type.kind == "primitive"
    ]
    assert [(int(row[0]), row[1]) for row in payloads] == [(int(kind), kind.name) for kind in EventType]
    parts = dict(header.typeof("struct event").fields)  # the union's are among them
    for number, name, payload in payloads:
        part = UNION.get(name, "alloc")
        expected = [
            (C_TYPES[field.type.cname], field_name, 24 + field.offset)
            for field_name, field in parts[part].type.fields
            if field_name not in WITHOUT_MEANING and not (name == "FREE" and field_name == "size")
        ]
        found = [(kind, field, int(at)) for kind, field, at in re.findall(r"`(\S+) (\w+)` @(\d+)", payload)]
        assert found == expected, (number, name)


def test_members_and_kinds_are_numbered_as_said() -> None:
    text = " ".join(FORMAT.read_text().split())
    assert "Members: 0 file, 1 anonymous, 2 swap, 3 shmem." in text
    assert [int(member) for member in Member] == [0, 1, 2, 3]
    assert [member.name for member in Member] == ["FILE", "ANON", "SWAP", "SHMEM"]
    assert "0 instant, 1 begin, 2 end" in text
    assert {kind.name.lower(): int(kind) for kind in MarkKind} == {"instant": 0, "begin": 1, "end": 2}


def test_report_keys_are_documented() -> None:
    report = memtrack.open(GOLDEN).report()
    of_report, of_process = tables(section(FORMAT, "The JSON report"))
    assert sorted(names_of(of_report)) == sorted(report)
    assert sorted(names_of(of_process)) == sorted(report["processes"][0])
    meaning = {name: named(row[1]) for row in of_report for name in named(row[0])}
    assert set(meaning["peak"]) >= set(report["peak"])
    assert set(meaning["status"]) == set(report["status"])
    for layer, source in report["sources"].items():
        assert {layer, *source} <= set(meaning["sources"])


@pytest.mark.bpf
def test_header_and_trailer_keys_are_documented() -> None:
    of_header, of_trailer = tables(section(FORMAT, "Header and trailer"))
    with memtrack.record(["true"]) as recording:
        assert sorted(names_of(of_header)) == sorted({*recording.header, "command_cut"})
        meaning = {name: named(row[1]) for row in of_header for name in named(row[0])}
        assert set(recording.header["detail"]) <= set(meaning["detail"])
        assert set(recording.header["recorder"]) == set(meaning["recorder"])
        assert recording.trailer is not None
        assert sorted(names_of(of_trailer)) == sorted(recording.trailer)


# --- the library ----------------------------------------------------------------------------------------------------


def documented_signatures() -> dict[str, ast.arguments]:
    found = {}
    for name, parameters in re.findall(r"\*\*`memtrack\.(\w+)\((.*?)\)`\*\*", " ".join(LIBRARY.read_text().split())):
        (function,) = ast.parse(f"def f({parameters}): pass").body
        assert isinstance(function, ast.FunctionDef)
        found[name] = function.args
    return found


@pytest.mark.parametrize("name", ["record", "Tracker", "open"])
def test_signatures_are_documented(name: str) -> None:
    arguments = documented_signatures()[name]
    actual = inspect.signature(getattr(memtrack, name))
    assert arguments.vararg is None
    documented: dict[str, Any] = {}
    positional = arguments.args
    defaults = [inspect.Parameter.empty] * (len(positional) - len(arguments.defaults))
    defaults += [ast.literal_eval(default) for default in arguments.defaults]
    documented |= dict(zip((argument.arg for argument in positional), defaults, strict=True))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        documented[argument.arg] = inspect.Parameter.empty if default is None else ast.literal_eval(default)
    if arguments.kwarg:
        documented[arguments.kwarg.arg] = inspect.Parameter.empty
    assert list(documented.items()) == [(p.name, p.default) for p in actual.parameters.values()]
    kinds = [p.name for p in actual.parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    assert kinds == [argument.arg for argument in arguments.kwonlyargs]


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def called(table: list[list[str]]) -> set[str]:
    return {name.partition("(")[0] for name in names_of(table)}


def test_tracker_is_documented() -> None:
    parameters, members, *_ = tables(section(LIBRARY, "Tracker"))
    assert names_of(parameters) == list(inspect.signature(memtrack.Tracker).parameters)
    assert called(members) == public(memtrack.Tracker)


def test_recording_is_documented() -> None:
    of_recording, of_events = tables(section(LIBRARY, "Reading"))
    assert called(of_recording) == public(memtrack.open(GOLDEN))
    text = prose(section(LIBRARY, "Reading"))
    for kind in (Figures, Peak, Process):
        assert {field.name for field in fields(kind)} <= set(named(text)), kind
    documented = {name: named(row[1]) for row in of_events for name in re.findall(r"[A-Z_]+", row[0])}
    expected = {kind.name: list(events._CLASSES[kind]._fields[4:]) for kind in EventType}
    assert documented == expected


def test_errors_are_documented() -> None:
    (table,) = tables(section(LIBRARY, "Errors"))
    classes = {name for name, thing in vars(errors).items() if isinstance(thing, type) and thing is not Exception}
    assert {*names_of(table), "MemtrackError"} == {name for name in classes if name.endswith("Error")}


def test_everything_public_is_documented() -> None:
    text = LIBRARY.read_text()
    for name in memtrack.__all__:
        assert isinstance(getattr(memtrack, name), types.ModuleType) or name == "__version__" or name in text, name


# --- kernels --------------------------------------------------------------------------------------------------------


def kept(name: str) -> str:
    found = re.search(rf"<!-- {name}: begin.*? -->\n(.*?)<!-- {name}: end -->", MATRIX.read_text(), re.DOTALL)
    assert found, f"{MATRIX.name} has no place for {name}"
    return found[1].strip()


def keep(name: str, table: str) -> None:
    kept(name)
    pattern = rf"(<!-- {name}: begin.*? -->\n).*?(<!-- {name}: end -->)"
    text = re.sub(pattern, lambda m: f"{m[1]}{table}\n{m[2]}", MATRIX.read_text(), flags=re.DOTALL)
    MATRIX.write_text(text)


def kernel_table() -> str:
    lines = ["| kernel | machine | rss | rmap | why it is tested |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| {k.name} | {k.arch} | {k.rss} | {k.rmap} | {k.why} |" for k in matrix.load().kernels]
    return "\n".join(lines)


def test_the_kernels_are_those_of_the_matrix() -> None:
    assert kept("kernels") == kernel_table(), f"what belongs there:\n{kernel_table()}"


def test_tiers_are_those_of_the_hooks() -> None:
    (_, rss, rmap) = tables(section(MATRIX, "What depends on the kernel"))
    assert names_of([[row[0]] for row in rss]) == list(hooks.RSS_TIERS)
    assert [(row[0].strip("`"), row[1]) for row in rmap[:-1]] == [
        (name, tier.kernels) for name, tier in rmap_hooks.RMAP_TIERS.items()
    ]
    assert rmap[-1][0] == f"`{rmap_hooks.MIXED_TIER}`"


def test_pages_off_are_of_the_whole_matrix_and_within_the_bounds() -> None:
    """A workload that is new, or one that failed, means that the kernels have to run it before it has its cells."""
    columns = table.parse(kept("pages off"))
    kernels = matrix.load().kernels
    assert list(columns) == [kernel.name for kernel in kernels]
    missing = []
    for kernel in kernels:
        cells = columns[kernel.name].cells
        assert cells.keys() <= {row.name for row in ROWS}
        missing += [f"{row.name} on {kernel.name}" for row in ROWS if row.name not in cells]
        for workload, cell in cells.items():
            where = f"{workload} on {kernel.name}: {cell}"
            if workload in kernel.skips and cell == "skipped":
                continue
            rmap = "-" if kernel.rmap == results.OFF else "0"
            found = re.fullmatch(rf"(\d+)(?: \(≤ (\d+)\))? / {rmap}(, \d+ lost)?", cell)
            assert found, where
            assert int(found[1]) <= int(found[2] or 0), where
            assert not found[3] or "rt" in kernel.flavour, where
    if missing:
        pytest.skip(f"{len(missing)} cells have not been measured, among them {missing[0]}")


if __name__ == "__main__":
    from tests.vmtest.__main__ import RESULTS

    keep("kernels", kernel_table())
    columns = table.parse(kept("pages off"))
    names = [kernel.name for kernel in matrix.load().kernels]
    verdicts = [verdict for name in names if (verdict := results.load(RESULTS / name))]
    new = {verdict.kernel: table.of_verdict(verdict) for verdict in verdicts}
    whole = {name: column for name, column in new.items() if column.cells.keys() == {row.name for row in ROWS}}
    keep("pages off", table.markdown({name: (columns | whole).get(name, Column()) for name in names}).strip())
