"""The base of guests of the host's own architecture."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.vmtest import native
from tests.vmtest.tree import files_below


def test_the_base_has_this_interpreter_and_what_tests_import() -> None:
    files, trees = native.parts()
    assert Path(sys.executable) in files
    below = {path for top, left_out in trees for path in files_below(top, left_out)}
    for module in ("os", "json", "pytest", "zstandard"):
        file = __import__(module).__file__
        assert file is not None
        assert Path(file) in below


def test_tools_of_developers_stay_outside() -> None:
    files = native.files_of(["pytest", "there-is-no-such-distribution"])
    assert any(path.name == "__main__.py" and path.parent.name == "pytest" for path in files)
    _, trees = native.parts()
    below = {path.name for top, left_out in trees for path in files_below(top, left_out)}
    assert "mypy" not in below
    assert "idlelib" not in below


def test_the_parts_of_the_library_that_nothing_needs_stay_outside(tmp_path: Path) -> None:
    (tmp_path / "config-3.11-x86_64-linux-gnu").mkdir()
    (tmp_path / "lib-dynload").mkdir()
    (tmp_path / "lib-dynload" / "_tkinter.cpython-311-x86_64-linux-gnu.so").touch()
    left_out = {str(path.relative_to(tmp_path)) for path in native.stdlib_left_out(tmp_path)}
    assert {
        "test",
        "site-packages",
        "config-3.11-x86_64-linux-gnu",
        "lib-dynload/_tkinter.cpython-311-x86_64-linux-gnu.so",
    } <= left_out
