"""The command `minga`: options, displays and exit codes around the library; no logic of its own.

    minga ARGUMENTS ─▶ app ─▶ one command's module ─▶ library ─▶ terminal/output ─▶ exit code

Read: commands (all of them, as data), app (the parser that is made of it). Then terminal (shared by all), taking_part,
keeping, planning, simulating, diagnosing, access, demo: one for each group of commands. Everything heavy is imported by
the command that needs it.

Called by the user's shell; nothing in the library imports it.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from minga.cli.terminal import exit_codes
from minga.core.errors import MingaError, StorageError, reason_of

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and end the process with its exit code; see `minga --help` for the codes."""
    for stream in (sys.stdout, sys.stderr):
        # A pipe on Windows, or a terminal in Latin-1, lacks some characters: no command ends because of an arrow.
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors="backslashreplace")
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _run(given)
    except BrokenPipeError:
        # Whoever read the output is gone, as with `| head`. Threads of the transport may be in the middle of a call:
        # an interpreter that is torn down around them aborts.
        os._exit(exit_codes.OK)
    if not (_flush(sys.stdout) and _flush(sys.stderr)):
        os._exit(code)  # the interpreter would try once more, and end with a code of its own
    if code in (exit_codes.INTERRUPTED, exit_codes.TERMINATED):
        # All goodbyes are said by now. An interpreter that is torn down in the middle of an import takes seconds.
        os._exit(code)
    # The interpreter collects garbage several times while it ends; with torch loaded that takes seconds for nothing.
    gc.freeze()
    sys.exit(code)


def _flush(stream: TextIO | None) -> bool:
    """Write what waits; whether that was possible. A program without a console has no streams."""
    try:
        if stream is not None:
            stream.flush()
    except (OSError, ValueError):
        return False
    return True


def _run(arguments: list[str]) -> int:
    json_output = "--json" in arguments
    try:
        code = _invoke(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()  # while what went wrong can still be told
        return code
    except KeyboardInterrupt:
        return exit_codes.report_interrupt(json_output=json_output)
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno not in exit_codes.FULL:
            raise
        return exit_codes.report(
            StorageError(f"the output cannot be written: {reason_of(error)}"), json_output=json_output
        )
    except BaseException as error:
        if exit_codes.interrupts:  # in the middle of an import, say, which makes an error of its own of it
            return exit_codes.report_interrupt(json_output=json_output)
        if type(error).__name__ == "Terminated":
            return exit_codes.report_interrupt(json_output=json_output, code=exit_codes.TERMINATED)
        if isinstance(error, MingaError):  # told in words, without a traceback
            return exit_codes.report(error, json_output=json_output)
        raise


def _invoke(arguments: list[str]) -> int:
    import typer

    from minga.cli.app import app

    try:
        result = app(arguments, standalone_mode=False, prog_name="minga")
    except typer.Exit as end:
        result = end.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception as error:
        if exit_codes.is_usage_error(error):
            return exit_codes.report_usage(error, json_output="--json" in arguments)
        raise
    if result == exit_codes.INTERRUPTED:  # how the parser passes a KeyboardInterrupt on
        raise KeyboardInterrupt
    return result if isinstance(result, int) else exit_codes.OK
