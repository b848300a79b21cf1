"""The laws of the source tree: who may import what, what the documents promise, what must not be written anywhere."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "memtrack"

# The bottom layer: what loads programs, drains the ring, asks the kernel, and reduces.
NATIVE_MODULES = {"loader", "ringbuf", "features", "reducer"}

# What reading, reducing and exporting a recording is made of.
READING_MODULES = (
    *(
        "errors",
        "events",
        "figures",
        "container",
        "zstdframe",
        "tracefile",
        "timeline",
        "reducer",
        "recording",
        "report",
    ),
)

# The standard library's modules that only POSIX has, and what only the extension needs.
NOT_EVERYWHERE = ("fcntl", "grp", "pwd", "pty", "resource", "termios", "cffi", "_cffi_backend", "memtrack._native")

DOCUMENTS = [path for name in ("*.md", "docs/*.md") for path in sorted(ROOT.glob(name))]


def tracked_files() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: nothing says which files belong to the project")
    # Root may run this in a checkout that another user owns, which git refuses without being told that it is meant.
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    files = [ROOT / name.decode() for name in listed.split(b"\0") if name]
    assert files
    return [path for path in files if path.is_file()]


def tracked_texts() -> list[tuple[Path, str]]:
    texts = []
    for path in tracked_files():
        data = path.read_bytes()
        if b"\0" not in data and path.parent.name != "LICENSES":
            texts.append((path, data.decode("utf-8")))
    return texts


def modules() -> list[Path]:
    found = sorted(PACKAGE.glob("*.py"))
    assert found
    return found


def imports(path: Path) -> set[str]:
    """The modules that `path` imports, at its top or within a function."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            names.add(base)
            names.update(f"{base}.{alias.name}" for alias in node.names)
    return names


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def make_commands(text: str) -> set[str]:
    """What a document's code calls: ``make NAME`` in backquotes or at the start of a line of an indented block."""
    return set(re.findall(r"(?:`|^(?:    |\$ )?)make ([a-z]+)", text, re.MULTILINE))


@pytest.mark.parametrize("module", ["", *READING_MODULES])
def test_reading_needs_neither_linux_nor_the_extension(module: str) -> None:
    code = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in {NOT_EVERYWHERE!r}:
            raise ModuleNotFoundError(f"{{name}} is not everywhere", name=name)

sys.meta_path.insert(0, Absent())
import {"memtrack." + module if module else "memtrack"}
if not {module!r}:
    memtrack.open, memtrack.Recording, memtrack.MemtrackError
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_only_the_bottom_layer_touches_the_extension() -> None:
    touching = {path.stem for path in modules() if any("_native" in name.split(".") for name in imports(path))}
    assert touching <= NATIVE_MODULES


def test_choosing_hooks_is_pure() -> None:
    pure = {"__future__", "collections", "dataclasses", "enum", "functools", "itertools", "re", "types", "typing"}
    choosing = ("facts", "hooks", "rmap_hooks")
    for module in choosing:
        names = [name.split(".") for name in imports(PACKAGE / f"{module}.py")]
        assert {name[0] for name in names} <= {*pure, "memtrack"}
        assert {name[1] for name in names if name[0] == "memtrack"} <= set(choosing)


def test_no_kernel_version_decides() -> None:
    # The header says which kernel it was, and doctor shows it; nobody else has a reason to ask.
    asking = {
        path.stem
        for path in modules()
        if re.search(r"\bos\.uname\b|\bplatform\.(release|uname|version)\b", path.read_text(encoding="utf-8"))
    }
    assert asking <= {"recorder", "doctor"}


def test_package_is_flat_and_words_are_of_the_field() -> None:
    assert not [path for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"]
    shapeless = re.compile(r"util|helper|manager|common|misc")
    assert not [path for path in tracked_files() if shapeless.search(path.name)]


def test_documents_name_commands_that_exist() -> None:
    targets = make_targets()
    for path in DOCUMENTS:
        assert make_commands(path.read_text(encoding="utf-8")) <= targets, path


def test_help_lists_every_target() -> None:
    shown = subprocess.run(["make", "-s", "help"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert set(re.findall(r"^make ([a-z]+)", shown, re.MULTILINE)) == make_targets()


def test_ci_runs_the_test_command_of_the_readme() -> None:
    assert "test" in make_commands((ROOT / "README.md").read_text(encoding="utf-8"))
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert lines[-1] == "make test"


def test_documents_link_to_files_that_exist() -> None:
    for path in DOCUMENTS:
        for link in re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8")):
            if "://" not in link:
                assert (path.parent / link).exists(), f"{path.name}: {link}"


def test_nothing_names_a_place_outside_the_checkout() -> None:
    for path, text in tracked_texts():
        assert str(ROOT) not in text, path
        for climb in re.findall(r"(?<![\w./])(?:\.\./)+\w[\w./-]*", text):
            assert (path.parent / climb).resolve().is_relative_to(ROOT), f"{path}: {climb}"


def test_only_sources_of_facts_are_linked() -> None:
    # Packages come from wherever the machine's own configuration says, so no other host has to be named.
    hosts = {"example.com", "docs.kernel.org", "git.kernel.org", "github.com", "lore.kernel.org", "www.kernel.org"}
    for path, text in tracked_texts():
        named = set(re.findall(r"\b(?:https?|ftp|git)://([\w.-]+)", text))
        assert named <= hosts, f"{path}: {named - hosts}"


def test_changelog_knows_the_version() -> None:
    source = (PACKAGE / "version.py").read_text(encoding="utf-8")
    (version,) = re.findall(r'^VERSION = "(.+)"$', source, re.MULTILINE)
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_every_dependency_says_why() -> None:
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    dependencies = [line for line in lines if re.match(r'    "[a-z-]+>=', line)]
    assert dependencies
    for line in dependencies:
        assert re.search(r",\s+# \w", line), line
    for line in (ROOT / "tools" / "packages.txt").read_text(encoding="utf-8").splitlines():
        assert line.startswith("#") or re.match(r"\S+\s+\S+\s+\w", line), line
