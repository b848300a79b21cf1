"""Starts the tracked command, with the rights and the environment of the user who asked."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Sequence
from typing import Any

from memtrack.errors import CommandError
from memtrack.invoker import Invoker

Process = subprocess.Popen[bytes]

# os.fspath'd argument; a Path, a str or bytes that are not UTF-8.
Argument = str | bytes | os.PathLike[str] | os.PathLike[bytes]


def start(command: Sequence[Argument], invoker: Invoker, **options: Any) -> Process:
    """Runs `command`; returns once it runs its own program. `options` are subprocess.Popen's.

    Standard streams and other inheritable descriptors are the caller's own, as under env(1); this process's own are all
    close-on-exec. Raises CommandError where the command cannot be started.
    """
    if not command:
        raise CommandError("no command given", "put it after --", found=False)
    options.setdefault("close_fds", False)
    if not invoker.is_self:
        environment = options.get("env")
        options |= {"user": invoker.uid, "group": invoker.gid, "extra_groups": invoker.groups}
        options["env"] = {**os.environ, **invoker.environment} if environment is None else environment
    try:
        return subprocess.Popen(command, **options)
    except (OSError, ValueError) as error:
        raise _cannot_run(command[0], error) from error


def _cannot_run(program: Argument, error: OSError | ValueError) -> CommandError:
    name = ascii(os.fsdecode(program))[1:-1]
    if isinstance(error, ValueError):  # a NUL byte in an argument
        return CommandError(f"cannot run {name}: {error}", found=True)
    code = error.errno or 0
    found = code not in (errno.ENOENT, errno.ENOTDIR)
    remedy = {
        errno.ENOENT: "check the name, PATH, and the interpreter that its first line names",
        errno.EACCES: "it needs execute permission, and so do the directories on its way",
        errno.ENOEXEC: "it is no program for this machine, or a script without a #! line",
        errno.E2BIG: "pass fewer or shorter arguments",
    }.get(code)
    return CommandError(f"cannot run {name}: {os.strerror(code).lower()}", remedy, found=found)
