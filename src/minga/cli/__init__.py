"""The command `minga`: options, displays and exit codes around the library; no logic of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and end the process with its exit code; see `minga --help` for the codes."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(_run(given))


def _run(arguments: list[str]) -> int:
    from minga.cli import _exit

    json_output = "--json" in arguments
    try:
        return _invoke(arguments)
    except KeyboardInterrupt:
        print("minga: interrupted", file=sys.stderr)
        return _exit.INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output is gone; keep the interpreter from complaining when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _exit.OK
    except BaseException as error:
        if type(error).__name__ == "Terminated":
            return _exit.TERMINATED
        if _exit.is_expected(error):
            return _exit.report(error, json_output=json_output)
        raise


def _invoke(arguments: list[str]) -> int:
    import typer

    from minga.cli import _exit
    from minga.cli._app import app

    try:
        result = app(arguments, standalone_mode=False, prog_name="minga")
    except typer.Exit as end:
        return int(end.exit_code)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception as error:
        if _exit.is_usage_error(error):
            return _exit.report_usage(error, json_output="--json" in arguments)
        raise
    return result if isinstance(result, int) else _exit.OK
