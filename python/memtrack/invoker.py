"""Who asked for the recording: under sudo the user behind it, not root."""

from __future__ import annotations

import os
import pwd
import re
from dataclasses import dataclass, field

from memtrack.errors import UsageError

# (uid_t) -1 and (gid_t) -1, which mean "leave it as it is" to the system calls.
_NO_ID = (1 << 32) - 1


@dataclass(frozen=True)
class Invoker:
    """The user whose command and whose files these are."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    is_self: bool
    """True if this process already runs as that user."""
    environment: dict[str, str] = field(default_factory=dict)
    """What sudo changed in the environment and the command should find as it was."""


def current() -> Invoker:
    """This process's own user."""
    return Invoker(os.geteuid(), os.getegid(), tuple(os.getgroups()), is_self=True)


def from_environment() -> Invoker:
    """The user behind sudo, or this process's own.

    SUDO_UID is believed only by root, whom it can take nothing but rights.
    """
    if os.geteuid() != 0 or "SUDO_UID" not in os.environ:
        return current()
    uid, gid = _id("SUDO_UID"), _id("SUDO_GID")
    if uid == 0:
        return current()
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return Invoker(uid, gid, (gid,), is_self=False)
    return Invoker(
        uid,
        gid,
        tuple(os.getgrouplist(user.pw_name, gid)),
        is_self=False,
        environment={"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name, "SHELL": user.pw_shell},
    )


def _id(variable: str) -> int:
    """A user's or group's number, as sudo writes it."""
    text = os.environ.get(variable, "")
    if re.fullmatch("[0-9]{1,10}", text, re.ASCII) and int(text) < _NO_ID:
        return int(text)
    raise UsageError(
        f"{variable} is {text!a}, not a number that sudo sets", "unset SUDO_UID and SUDO_GID to run the command as root"
    )
