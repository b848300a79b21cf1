"""Who asked, from what sudo leaves in the environment."""

from __future__ import annotations

import os
import pwd
import re

import pytest

from memtrack import invoker
from memtrack.errors import UsageError

# In every passwd file; its group is another matter.
NOBODY = pwd.getpwnam("nobody")


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for variable in ("SUDO_UID", "SUDO_GID"):
        monkeypatch.delenv(variable, raising=False)
    return monkeypatch


@pytest.mark.usefixtures("root")
def test_without_sudo_it_is_this_user() -> None:
    assert invoker.from_environment() == invoker.current()
    assert invoker.current().is_self


def test_the_user_behind_sudo(root: pytest.MonkeyPatch) -> None:
    root.setenv("SUDO_UID", str(NOBODY.pw_uid))
    root.setenv("SUDO_GID", str(NOBODY.pw_gid))
    user = invoker.from_environment()
    assert (user.uid, user.gid, user.is_self) == (NOBODY.pw_uid, NOBODY.pw_gid, False)
    assert set(user.groups) == set(os.getgrouplist("nobody", NOBODY.pw_gid))
    assert user.environment["HOME"] == NOBODY.pw_dir
    assert user.environment["USER"] == user.environment["LOGNAME"] == "nobody"


def test_a_user_without_a_name_has_one_group(root: pytest.MonkeyPatch) -> None:
    root.setenv("SUDO_UID", "4000000000")
    root.setenv("SUDO_GID", "4000000001")
    user = invoker.from_environment()
    assert (user.uid, user.gid, user.groups, user.environment) == (4000000000, 4000000001, (4000000001,), {})


def test_root_that_became_root_is_itself(root: pytest.MonkeyPatch) -> None:
    root.setenv("SUDO_UID", "0")
    root.setenv("SUDO_GID", "0")
    assert invoker.from_environment().is_self


def test_only_root_believes_it(root: pytest.MonkeyPatch) -> None:
    root.setattr(os, "geteuid", lambda: 1000)
    root.setenv("SUDO_UID", "0; rm -rf /")
    assert invoker.from_environment().is_self


@pytest.mark.parametrize(
    "value",
    ["", "-1", "+5", " 5", "5 ", "5\n", "0x5", "1_000", "5.0", "root", "١٢", "4294967295", "4294967296", "9" * 5000],
)
@pytest.mark.parametrize("variable", ["SUDO_UID", "SUDO_GID"])
def test_what_sudo_never_writes_is_refused(root: pytest.MonkeyPatch, variable: str, value: str) -> None:
    root.setenv("SUDO_UID", "1000")
    root.setenv("SUDO_GID", "1000")
    root.setenv(variable, value)
    expected = (
        rf"^{variable} is {re.escape(ascii(value))}, not a number that sudo sets \(unset SUDO_UID and SUDO_GID .*\)$"
    )
    with pytest.raises(UsageError, match=expected):
        invoker.from_environment()


def test_both_are_needed(root: pytest.MonkeyPatch) -> None:
    root.setenv("SUDO_UID", "1000")
    with pytest.raises(UsageError, match="SUDO_GID is ''"):
        invoker.from_environment()
