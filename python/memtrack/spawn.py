"""Starts the tracked command, with the rights and the environment of the user who asked."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from memtrack.errors import CommandError, MemtrackError, UsageError
from memtrack.invoker import Invoker

Process = subprocess.Popen[bytes]

# os.fspath'd argument; a Path, a str or bytes that are not UTF-8.
Argument = str | bytes | os.PathLike[str] | os.PathLike[bytes]


def start(command: Sequence[Argument], invoker: Invoker, **options: Any) -> Process:
    """Runs `command`; returns once it runs its own program. `options` are subprocess.Popen's.

    Standard streams and other inheritable descriptors are the caller's own, as under env(1); this process's own are all
    close-on-exec. Raises CommandError where the command cannot be started.
    """
    if isinstance(command, (str, bytes)):
        raise UsageError("the command is one string", "give a list of strings, or shlex.split() it")
    if not command:
        raise UsageError("no command given", "name a program to run")
    if options.get("shell"):  # its name would be looked for as a program
        raise UsageError("the command is not given to a shell", 'name it: ["sh", "-c", ...]')
    options.setdefault("close_fds", False)
    # With any such option Popen does not take posix_spawn(3), which leaves the C library's own signals ignored.
    options.setdefault("umask", _umask())
    if not invoker.is_self:
        environment = options.get("env")
        options |= {"user": invoker.uid, "group": invoker.gid, "extra_groups": invoker.groups}
        options["env"] = {**os.environ, **invoker.environment} if environment is None else environment
    try:
        return _popen(command, options)
    except (OSError, ValueError) as error:
        raise _cannot_run(command[0], error, options.get("cwd")) from error


def _popen(command: Sequence[Argument], options: dict[str, Any]) -> Process:
    """As execvp(3) does, and so env(1): Popen would go on past a script without a #! line to the next of that name."""
    if "executable" in options:
        return subprocess.Popen(command, **options)
    denied: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
    for program in _programs(os.fsdecode(command[0]), options.get("env")):
        try:
            return subprocess.Popen(command, executable=program, **options)
        except OSError as error:
            if error.errno == errno.ENOEXEC:
                return subprocess.Popen(["/bin/sh", program, *command[1:]], **options)
            if error.errno != errno.EACCES or error.filename is None:
                raise
            denied = error
    raise denied


def _umask() -> int:
    """This process's own; asking for it by umask(2) would change it for a moment."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("Umask:"):  # since Linux 4.7
                return int(line.split()[1], 8)
    return -1  # Popen's "leave it as it is"


def _programs(name: str, environment: Mapping[str, str] | None) -> list[str]:
    """Where a name may stand for a program, best first."""
    if "/" in name:
        return [name]
    places = (f"{directory or '.'}/{name}" for directory in os.get_exec_path(environment))
    return [place for place in places if name and os.path.lexists(place)]


def _cannot_run(program: Argument, error: OSError | ValueError, directory: Argument | None) -> MemtrackError:
    name = _shown(program)
    if isinstance(error, ValueError):  # a NUL byte in an argument
        return CommandError(f"cannot run {name}: {error}", found=True)
    code = error.errno or 0
    # It did not come to the program: no fork, or no change of the user.
    if error.filename is None or code in (errno.EAGAIN, errno.ENOMEM):
        return MemtrackError(
            f"cannot start a process: {os.strerror(code).lower()}", "see ulimit -a and the capabilities"
        )
    if directory is not None and error.filename == directory:
        return CommandError(f"cannot run {name} in {_shown(directory)}: {os.strerror(code).lower()}", found=True)
    if code == errno.EACCES and Path(os.fsdecode(program)).is_dir():
        return CommandError(f"cannot run {name}: it is a directory", "name a program in it", found=True)
    remedy = {
        errno.ENOENT: "check the name, PATH, and the interpreter that its first line names",
        errno.EACCES: "it needs execute permission, and so do the directories on its way",
        errno.ENOEXEC: "it is no program for this machine",
        errno.E2BIG: "pass fewer or shorter arguments, or less environment",
    }.get(code)
    return CommandError(f"cannot run {name}: {os.strerror(code).lower()}", remedy, found=code != errno.ENOENT)


def _shown(name: Argument) -> str:
    return ascii(os.fsdecode(name))[1:-1] or "''"
