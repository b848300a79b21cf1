"""The command line: record, report, doctor. The one place that prints errors and decides exit statuses."""

from __future__ import annotations

import argparse
import errno
import io
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from memtrack import recording, report
from memtrack.detail import size_in_bytes
from memtrack.errors import EXIT_MEMTRACK_FAILED, LoadError, MemtrackError, OutputError, UsageError
from memtrack.version import VERSION

if TYPE_CHECKING:
    from memtrack.output import Output
    from memtrack.recorder import Tracker
    from memtrack.spawn import Process

_EPILOG = """\
record ends with the command's own status, 128+N if signal N ended it, 125 if memtrack itself failed, 126 if the command
cannot be run and 127 if it is not found.
"""

# How often a tree whose first process has ended is looked at with --wait.
_WAIT_SECONDS = 0.05


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs memtrack with sys.argv's arguments, or the given ones, and returns the exit status."""
    _occupy_standard_descriptors()
    try:
        try:
            options = _parser().parse_args(arguments)
        except SystemExit:  # --help and --version have printed what they have to say
            return 0
        status: int = options.run(options)
        return status
    except MemtrackError as error:
        return _fail(error)
    except BrokenPipeError:
        # Whoever read our output has gone, as `| head` does. Nothing is left to say and nobody to say it to.
        return _end_by("SIGPIPE")
    except KeyboardInterrupt:
        return _end_by("SIGINT")
    except Exception:
        # Our own mistake, which is reported as it is, but must not pass for the command's exit status 1.
        traceback.print_exc()
        return EXIT_MEMTRACK_FAILED


def _fail(error: MemtrackError) -> int:
    _say(f"memtrack: {error}")
    return error.exit_code


def _say(text: str) -> None:
    """To stderr; that nobody listens there changes nothing."""
    if sys.stderr is None:  # print would take stdout, which is the command's
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _give_up(sys.stderr)


def _print(text: str) -> None:
    _print_parts([text])


def _print_parts(parts: Iterable[str]) -> None:
    """To stdout, for good or with an error. What the terminal has no character for is escaped."""
    if sys.stdout is None:
        raise _cannot_print(errno.EBADF)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        for part in parts:
            print(part, end="")
        print(flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _cannot_print(error.errno or errno.EIO) from error


def _cannot_print(code: int) -> OutputError:
    if sys.stdout is not None:
        _give_up(sys.stdout)
    return OutputError(f"cannot write to standard output: {os.strerror(code).lower()}", "redirect it to a file")


def _occupy_standard_descriptors() -> None:
    """So that no file of ours gets the number of a closed one, and with it what somebody writes there.

    They are closed on exec: the command finds its descriptors as we found ours.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            with suppress(OSError):  # a root directory without /dev
                os.open(os.devnull, os.O_RDWR)


def _end_by(name: str) -> int:
    """Ends this process as the signal would have, so that the shell knows; the status where there are no signals."""
    number = getattr(signal, name, None)
    if number is not None:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    return EXIT_MEMTRACK_FAILED


def _give_up(stream: TextIO) -> None:
    """What could not be written must not be tried again, and fail again, when the interpreter ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class _Parser(argparse.ArgumentParser):
    """Usage errors are memtrack's own failures: 125, as the contract has it, where argparse has 2."""

    def __init__(self, **options: Any) -> None:
        # An abbreviation would change its meaning with the next option.
        super().__init__(allow_abbrev=False, **options)

    def _print_message(self, message: str, file: Any = None) -> None:  # noqa: ARG002 - help and version, to stdout
        # argparse would pass over what cannot be written.
        _print(message.rstrip("\n"))

    def error(self, message: str) -> NoReturn:
        raise UsageError(report.shown(message), f"{self.prog} --help says more")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="memtrack", description="How much memory did this really use? RSS of a process tree, event by event."
    )
    parser.add_argument("--version", action="version", version=f"memtrack {VERSION}")
    parser.set_defaults(run=_no_action)
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=_Parser)

    record = commands.add_parser(
        "record",
        usage="memtrack record [OPTION...] [--] COMMAND [ARGUMENT...]",
        help="run a command and record its process tree",
        epilog=_EPILOG,
    )
    record.add_argument("-o", dest="output", metavar="FILE", help="the recording (default: memtrack.PID.zst)")
    record.add_argument("-f", dest="force", action="store_true", help="overwrite what exists")
    record.add_argument("--rmap", action="store_true", help="also rebuild RSS from the reverse map; costs more")
    record.add_argument("--json", metavar="FILE", help="write the report as JSON too")
    record.add_argument("--strict", action="store_true", help="lost events are a failure (125)")
    record.add_argument("--summary", action="store_true", help="totals and peaks only: no events, no recording file")
    record.add_argument("--resolution", metavar="SIZE|TIME", help="an event per so much change or time (64KiB, 1ms)")
    record.add_argument("--ring-size", metavar="SIZE", help="of the ring buffer, a power of two (default: by memory)")
    record.add_argument(
        "--max-processes", metavar="N", type=int, default=None, help="room for so many processes at one time"
    )
    record.add_argument("--wait", action="store_true", help="record until the whole tree has ended")
    record.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="with its arguments; nothing after it is memtrack's",
    )
    record.set_defaults(run=_record)

    show = commands.add_parser("report", help="print what a recording says")
    show.add_argument("file", metavar="FILE")
    show.add_argument("--json", action="store_true", help="as JSON")
    show.set_defaults(run=_report)

    doctor = commands.add_parser("doctor", help="say what works on this machine, what does not, and why")
    doctor.add_argument("--json", action="store_true", help="as JSON")
    doctor.set_defaults(run=_doctor)
    return parser


def _no_action(_options: argparse.Namespace) -> int:
    raise UsageError("nothing to do", "usage: memtrack record|report|doctor ...; memtrack --help says more")


def _record(options: argparse.Namespace) -> int:
    # Here, because reading recordings must not need the native extension.
    try:
        from memtrack import invoker, loader, losses, output, recorder
    except ImportError as error:
        raise LoadError(f"cannot load the native extension: {error}", "reinstall memtrack for this machine") from error

    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise UsageError("no command to record", "put it after --, as in: record -- make -j2")
    if options.summary and options.output is not None:
        raise UsageError("--summary makes no recording", "leave out -o, or --summary")
    if options.summary and options.rmap:
        raise UsageError("--summary has no rmap layer", "leave out --rmap, or --summary")
    if "-" in (options.output, options.json):
        raise UsageError("standard output is the command's", "name a file, or ./- where that is its name")
    path = f"memtrack.{os.getpid()}.zst" if options.output is None else options.output
    if not options.summary and options.json is not None and Path(options.json).absolute() == Path(path).absolute():
        raise UsageError("the recording and the report cannot be one file", "name two with -o and --json")
    user = invoker.from_environment()
    _undo_locale_coercion()
    with ExitStack() as files:
        made: Output | None = None
        if not options.summary:
            made = files.enter_context(output.create(path, user, overwrite=options.force))
        report_made: Output | None = None
        if options.json is not None:
            report_made = files.enter_context(output.create(options.json, user, overwrite=options.force, hidden=True))
        tracker = recorder.Tracker(
            None if made is None else made.file,
            rmap=options.rmap or (None if made is not None else False),
            events=not options.summary,
            resolution=options.resolution,
            ring_bytes=None if options.ring_size is None else size_in_bytes(options.ring_size),
            max_processes=loader.MAX_PROCESSES if options.max_processes is None else options.max_processes,
            command=command,
            invoking_user=user,
        )
        code, failure = _track(tracker, command, made, wait=options.wait)
        result = tracker.recording
        _say(report.to_text(result))
        if (options.rmap or (made is not None and recorder.rmap_wanted())) and result.sources["rmap"]["reason"]:
            _say("\nmemtrack: the rmap layer is off, for the reason above (python -m memtrack doctor says more)")
        if made is not None:
            _say(f"\nrecording: {report.shown(path)} (python -m memtrack report {report.shown(path)})")
        if report_made is not None:
            for part in report.json_parts(result):
                report_made.write(part.encode("ascii"))
            report_made.write(b"\n")
            report_made.keep()
    if failure is not None:
        raise failure
    if options.strict and result.lost_events:
        lost = "1 event was" if result.lost_events == 1 else f"{result.lost_events} events were"
        raise MemtrackError(f"{lost} lost", losses.remedy(result.losses or {}))
    return 128 - code if code < 0 else code


def _track(
    tracker: Tracker, command: Sequence[str], made: Output | None, *, wait: bool
) -> tuple[int, MemtrackError | None]:
    """Runs the command to its end; returns Popen's return code, and what went wrong with the recording meanwhile."""
    from memtrack.signals import Forwarder

    process: Process | None = None
    failure: MemtrackError | None = None
    with Forwarder().installed() as forwarder:
        try:
            with tracker:
                process = forwarder.start(lambda: tracker.spawn(command))
                try:
                    # Now, not at the end: whoever kills us wants to find the file.
                    if made is not None:
                        made.keep()
                except OutputError as error:
                    failure = error
                code = forwarder.wait(process)
                while wait and tracker.members and not forwarder.interrupted:
                    time.sleep(_WAIT_SECONDS)
        except MemtrackError as error:
            if process is None:
                raise
            failure = failure or error
    return code, failure


def _undo_locale_coercion() -> None:
    """In the C locale the interpreter exports LC_CTYPE (PEP 538), which the command would not have found without us."""
    with suppress(OSError):
        started_with = Path("/proc/self/environ").read_bytes().split(b"\0")
        found = [variable for variable in started_with if variable.startswith(b"LC_CTYPE=")]
        os.environ.pop("LC_CTYPE", None)
        if found:
            os.environb[b"LC_CTYPE"] = found[0].partition(b"=")[2]


def _report(options: argparse.Namespace) -> int:
    with recording.open(options.file) as result:
        _print_parts(report.json_parts(result) if options.json else [report.to_text(result)])
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from memtrack import doctor

    findings: dict[str, Any] = doctor.collect()
    _print(json.dumps(findings, indent=2) if options.json else doctor.to_text(findings))
    return 0
