"""Who asked for the recording: under sudo the user behind it, not root."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass, field

from memtrack.errors import UsageError


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
    try:
        uid = int(os.environ["SUDO_UID"])
        gid = int(os.environ["SUDO_GID"])
    except (KeyError, ValueError):
        raise UsageError(
            "SUDO_UID and SUDO_GID are not the numbers that sudo sets", "unset both to run the command as root"
        ) from None
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
