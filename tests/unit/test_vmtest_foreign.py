"""The base of guests of another architecture; no network, no cross compiler."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

from tests.vmtest import foreign
from tests.vmtest.matrix import MatrixError


def test_an_architecture_without_a_cross_build_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="guests of s390x run on hosts of s390x only"):
        foreign.setup("s390x", tmp_path)


def test_a_missing_cross_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(MatrixError, match=r"\(install gcc-aarch64-linux-gnu, libc6-dev-arm64-cross\)"):
        foreign.setup("arm64", tmp_path)


def test_python_of(tmp_path: Path) -> None:
    (tmp_path / "usr/lib/python3").mkdir(parents=True)  # Debian's own modules, of no version
    (tmp_path / "usr/lib/python3.13").mkdir()
    assert foreign.python_of(tmp_path) == "3.13"


def test_byte_code_is_made_for_the_paths_of_the_guest(tmp_path: Path) -> None:
    stdlib = tmp_path / f"usr/lib/python{sys.version_info.major}.{sys.version_info.minor}"
    stdlib.mkdir(parents=True)
    (stdlib / "x.py").write_text("def f(): pass\n")
    foreign.compile_stdlib(tmp_path)
    compiled = Path(importlib.util.cache_from_source(str(stdlib / "x.py"))).read_bytes()
    assert compiled[4:8] == b"\x01\0\0\0"  # hash-based, and not to be checked
    assert str(stdlib.relative_to(tmp_path)).encode() in compiled
    assert str(tmp_path).encode() not in compiled


def test_byte_code_of_another_version_is_left_to_the_guest(tmp_path: Path) -> None:
    stdlib = tmp_path / "usr/lib/python3.1"
    stdlib.mkdir(parents=True)
    (stdlib / "x.py").touch()
    foreign.compile_stdlib(tmp_path)
    assert [path.name for path in stdlib.iterdir()] == ["x.py"]


def test_the_key_depends_on_every_word() -> None:
    assert foreign.key_of(["a", "b"]) == foreign.key_of(iter(["a", "b"]))
    assert foreign.key_of(["a", "b"]) != foreign.key_of(["ab"])
