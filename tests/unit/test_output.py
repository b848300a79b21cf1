"""What becomes of output files, and of what was there before."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from memtrack import invoker, output
from memtrack.errors import OutputError
from memtrack.output import create

SELF = invoker.current()


@pytest.fixture(params=["nameless", "named"])
def kind_of_file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """One that has files without names, or not."""
    original = os.open

    def refuse(path: Path, flags: int, *rest: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "", path)
        return original(path, flags, *rest)

    kind = str(request.param)
    if kind == "named":
        monkeypatch.setattr(os, "open", refuse)
    else:
        try:
            os.close(original(tmp_path, os.O_TMPFILE | os.O_RDWR))
        except OSError as error:
            pytest.skip(f"the file system of temporary files has none without a name: {error.strerror}")
    return kind


def test_what_is_to_replace_another_leaves_nothing_when_it_is_killed(kind_of_file_system: str, tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.write_bytes(b"old")
    with create(path, SELF, overwrite=True) as made:
        made.write(b"new")
        assert len(list(tmp_path.iterdir())) == (1 if kind_of_file_system == "nameless" else 2)


def test_a_new_file_has_its_name_at_once(tmp_path: Path) -> None:
    path = tmp_path / "new"
    with create(path, SELF) as made:
        made.file.write(b"content")
        assert path.read_bytes() == b"content"
        made.keep()
    assert path.read_bytes() == b"content"


@pytest.mark.usefixtures("kind_of_file_system")
def test_a_hidden_file_has_its_name_when_it_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "new"
    with create(path, SELF, hidden=True) as made:
        made.write(b"content")
        assert not path.exists()
        made.keep()
    assert [found.name for found in tmp_path.iterdir()] == ["new"]
    assert path.read_bytes() == b"content"


@pytest.mark.usefixtures("kind_of_file_system")
def test_a_hidden_file_overwrites_nothing_that_has_come_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "new"
    with create(path, SELF, hidden=True) as made:
        made.write(b"content")
        path.write_bytes(b"another's")
        with pytest.raises(OutputError, match="exists"):
            made.keep()
    assert [found.name for found in tmp_path.iterdir()] == ["new"]
    assert path.read_bytes() == b"another's"


def test_what_is_not_kept_goes_away(tmp_path: Path) -> None:
    with create(tmp_path / "new", SELF) as made:
        made.file.write(b"content")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("kind_of_file_system")
def test_what_is_overwritten_stays_until_the_new_one_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.write_bytes(b"old")
    with create(path, SELF, overwrite=True) as made:
        made.file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"old"
    with create(path, SELF, overwrite=True) as made:
        made.file.write(b"new")
        made.keep()
        made.file.write(b"er")
    assert path.read_bytes() == b"newer"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("kind_of_file_system")
def test_whoever_reads_the_old_file_still_has_it_all(tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.write_bytes(b"old")
    linked = tmp_path / "linked"
    linked.hardlink_to(path)
    with path.open("rb") as reader:
        with create(path, SELF, overwrite=True) as made:
            made.keep()
        assert reader.read() == b"old"
    assert linked.read_bytes() == b"old"


@pytest.mark.usefixtures("kind_of_file_system")
def test_one_process_may_make_several(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b")]
    for path in paths:
        path.touch()
    with create(paths[0], SELF, overwrite=True) as first, create(paths[1], SELF, overwrite=True) as second:
        first.write(b"first")
        second.write(b"second")
        first.keep()
        second.keep()
    assert [path.read_bytes() for path in paths] == [b"first", b"second"]


def test_the_recording_can_be_read_back(tmp_path: Path) -> None:
    with create(tmp_path / "new", SELF) as made:
        made.write(b"content")
        made.file.seek(0)
        assert made.file.read() == b"content"


def test_no_program_that_is_started_inherits_it(tmp_path: Path) -> None:
    with create(tmp_path / "new", SELF) as made:
        assert not os.get_inheritable(made.file.fileno())


def test_permissions_are_the_masks(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with create(tmp_path / "new", SELF) as made:
            made.keep()
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("link", "it is a symbolic link"),
        ("dangling", "it is a symbolic link"),
        ("directory", "it is a directory"),
        ("fifo", "it is not a regular file"),
        ("/dev/full", "it is not a regular file"),
        ("/dev/stdout", "it is a symbolic link"),
        ("", "it is a directory"),
        ("missing/name", "no such file or directory"),
        ("file/name", "not a directory"),
        ("n" * 300, "file name too long"),
    ],
)
def test_nothing_but_regular_files(kind: str, cause: str, overwrite: bool, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    there = set(tmp_path.iterdir())
    with pytest.raises(OutputError, match=rf"^cannot write .*: {cause} \(.+\)$") as failed:
        create(tmp_path / kind if kind else "", SELF, overwrite=overwrite)
    assert failed.value.exit_code == 125
    assert set(tmp_path.iterdir()) == there
    assert (tmp_path / "file").read_bytes() == b"precious"


def test_what_exists_is_not_overwritten_unasked(tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.write_bytes(b"old")
    with pytest.raises(
        OutputError, match=r"^cannot write .*: file exists \(use -f to overwrite it, or name another\)$"
    ):
        create(path, SELF)
    assert path.read_bytes() == b"old"


def test_what_comes_in_between_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "link"
    path.symlink_to("target")
    (tmp_path / "target").write_bytes(b"precious")
    monkeypatch.setattr(output, "_check_replaceable", lambda _path: False)
    with pytest.raises(OutputError, match="file exists"):
        create(path, SELF, overwrite=True)
    assert (tmp_path / "target").read_bytes() == b"precious"


def test_a_name_is_shown_without_what_moves_the_cursor(tmp_path: Path) -> None:
    with pytest.raises(OutputError) as failed:
        create(tmp_path / "missing" / "a\nb\x1b[31m\udcff", SELF)
    assert r"a\nb\x1b[31m\udcff" in str(failed.value)


def test_a_name_that_cannot_be_had_any_more(tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.touch()
    with create(path, SELF, overwrite=True) as made:
        path.unlink()
        (path / "in the way").mkdir(parents=True)
        with pytest.raises(OutputError, match=r"cannot write .*: is a directory"):
            made.keep()
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_that_goes_away_meanwhile_is_no_trouble(tmp_path: Path) -> None:
    directory = tmp_path / "gone"
    directory.mkdir()
    with create(directory / "new", SELF):
        (directory / "new").unlink()
        directory.rmdir()


def test_all_is_written_or_it_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Grudging:
        """Takes three bytes at a time, and ten in all."""

        content = b""

        def write(self, data: memoryview) -> int:
            taken = bytes(data[: min(3, 10 - len(self.content))])
            if not taken:
                raise OSError(errno.ENOSPC, "no space")
            self.content += taken
            return len(taken)

    with create(tmp_path / "new", SELF) as made:
        file, grudging = made.file, Grudging()
        monkeypatch.setattr(made, "file", grudging)
        made.write(b"0123456789")
        assert grudging.content == b"0123456789"
        with pytest.raises(OutputError, match=r"no space left on device \(free some space, or name another place\)"):
            made.write(b"x")
        monkeypatch.setattr(made, "file", file)
