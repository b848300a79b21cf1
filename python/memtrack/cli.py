"""The command line: record, report, doctor. The one place that prints errors and decides exit statuses."""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from memtrack import recording, report
from memtrack.errors import EXIT_MEMTRACK_FAILED, LoadError, MemtrackError, OutputError
from memtrack.version import VERSION

if TYPE_CHECKING:
    from memtrack.recording import Recording

_EPILOG = """\
record ends with the command's own status, 128+N if signal N ended it, 125 if memtrack itself failed, 126 if the command
cannot be run and 127 if it is not found.
"""

# How often a tree whose first process has ended is looked at with --wait.
_WAIT_SECONDS = 0.05


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs memtrack with sys.argv's arguments, or the given ones, and returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except MemtrackError as error:
        return _fail(error)
    except BrokenPipeError:
        # Whoever read our output has gone, as `| head` does. Nothing is left to say and nobody to say it to; stdout is
        # replaced so that the interpreter's last flush does not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_MEMTRACK_FAILED
    except OSError as error:
        return _fail(OutputError(f"cannot write to standard output: {os.strerror(error.errno or errno.EIO).lower()}"))
    except KeyboardInterrupt:
        return 130


def _fail(error: MemtrackError) -> int:
    _say(f"memtrack: {error}")
    return error.exit_code


def _say(text: str) -> None:
    """To stderr; that nobody listens there changes nothing."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


class _Parser(argparse.ArgumentParser):
    """Usage errors are memtrack's own failures: 125, as the contract has it, where argparse has 2."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_MEMTRACK_FAILED, f"{self.prog}: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="memtrack", description="How much memory did this really use? RSS of a process tree, event by event."
    )
    parser.add_argument("--version", action="version", version=f"memtrack {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)

    record = commands.add_parser("record", help="run a command and record its process tree", epilog=_EPILOG)
    record.add_argument("-o", dest="output", metavar="FILE", help="the recording (default: memtrack.PID.zst)")
    record.add_argument("-f", dest="force", action="store_true", help="overwrite what exists")
    record.add_argument("--rmap", action="store_true", help="also rebuild RSS from the reverse map; costs more")
    record.add_argument("--json", metavar="FILE", help="write the report as JSON too")
    record.add_argument("--strict", action="store_true", help="lost events are a failure (125)")
    record.add_argument("--wait", action="store_true", help="record until the whole tree has ended")
    record.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD [ARG...]")
    record.set_defaults(run=_record)

    show = commands.add_parser("report", help="print what a recording says")
    show.add_argument("file", metavar="FILE")
    show.add_argument("--json", action="store_true", help="as JSON")
    show.set_defaults(run=_report)

    doctor = commands.add_parser("doctor", help="say what works on this machine, what does not, and why")
    doctor.add_argument("--json", action="store_true", help="as JSON")
    doctor.set_defaults(run=_doctor)
    return parser


def _record(options: argparse.Namespace) -> int:
    # Here, because reading recordings must not need the native extension.
    try:
        from memtrack import invoker, output, recorder
        from memtrack.signals import Forwarder
    except ImportError as error:
        raise LoadError(f"cannot load the native extension: {error}", "reinstall memtrack for this machine") from error

    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise MemtrackError("no command to record", "put it after --, as in: record -- make -j2")
    user = invoker.from_environment()
    path = options.output or f"memtrack.{os.getpid()}.zst"
    file = output.create(path, user, overwrite=options.force)
    report_file: BinaryIO | None = None
    started = False
    try:
        if options.json:
            report_file = output.create(options.json, user, overwrite=options.force)
        with Forwarder().installed() as forwarder:
            tracker = recorder.Tracker(file, rmap=options.rmap or None, command=command, invoking_user=user)
            failure: MemtrackError | None = None
            try:
                with tracker:
                    process = tracker.spawn(command)
                    started = True
                    code = forwarder.wait(process)
                    while options.wait and tracker.members and not forwarder.interrupted:
                        time.sleep(_WAIT_SECONDS)
            except MemtrackError as error:
                if not started:
                    raise
                failure = error
        result = tracker.recording
        if report_file is not None:
            report_file.write(_json(result).encode("ascii"))
        _say(report.to_text(result))
        _say(f"\nrecording: {report.shown(path)} (python -m memtrack report {report.shown(path)})")
        if failure is not None:
            raise failure
        if options.strict and result.lost_events:
            raise MemtrackError(f"{result.lost_events} events were lost", "record with a larger ring or less load")
        return 128 - code if code < 0 else code
    finally:
        file.close()
        if report_file is not None:
            report_file.close()
        if not started:
            for name in (path, options.json) if report_file is not None else (path,):
                output.remove(name, user)


def _report(options: argparse.Namespace) -> int:
    with recording.open(options.file) as result:
        print(_json(result) if options.json else report.to_text(result))
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from memtrack import doctor

    findings: dict[str, Any] = doctor.collect()
    print(json.dumps(findings, indent=2) if options.json else doctor.to_text(findings))
    return 0


def _json(result: Recording) -> str:
    return json.dumps(report.to_json(result), indent=2)
