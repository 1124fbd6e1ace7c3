"""Exit codes of all commands, and what is said when one fails."""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
import sys
import threading
from collections.abc import Callable
from textwrap import TextWrapper
from typing import Any, TextIO

from minga.core.errors import (
    ConfigurationError,
    IdentityError,
    LinkError,
    LocalError,
    NoStateError,
    RejectedError,
    RemoteError,
    StorageError,
)
from minga.core.refusal_code import RefusalCode
from minga.core.units import counted

OK, CHECK_FAILED, USAGE, REMOTE, STORAGE, LOCAL, NO_STATE, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 4, 5, 6, 130, 143
CLOCK, KEY = 7, 8

MEANINGS = {
    OK: "done",
    CHECK_FAILED: "a check did not hold (demo, doctor, runs verify), or minga has a defect",
    USAGE: "a wrong option, run spec or link",
    REMOTE: "network: no peer answered, or one refused",
    STORAGE: "the disk, or a key file, cannot be used",
    LOCAL: "another error on this machine",
    NO_STATE: "no peer that has the run's state could be reached",
    CLOCK: "this machine's clock is too far off the run's",
    KEY: "another process uses this machine's key",
    INTERRUPTED: "ended by Ctrl-C",
    TERMINATED: "ended by another signal, such as SIGTERM",
}
"""What each code says."""

FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
"""How a disk refuses output that the shell writes into a file."""

_REFUSALS = {RefusalCode.CLOCK: CLOCK, RefusalCode.KEY: KEY}

before_last_line: list[Callable[[], None]] = []
"""Called before the summary of a failure is printed, so that it is the last line of the output."""

interrupts: list[int] = []
"""The numbers of the signals by which this process was interrupted."""

interrupts_told: list[int] = []
"""Not empty once it was said that this process was interrupted, and its last line printed."""

_telling = threading.Lock()

done_so_far: list[Callable[[], dict[str, int]]] = []
"""Asked for what the command has done when it is interrupted: the `step` it got to, its own `samples`, the step of its
newest `checkpoint`."""


farewells: list[Callable[[dict[str, int]], str]] = []
"""What a command that is usually ended by a signal, such as Ctrl-C, says then, by what it has done; the last one
counts."""


_NOBODY_READS = contextlib.suppress(OSError, ValueError)
"""Around the last words of a command: whoever read them may have been ended by the same signal, or the disk is full."""


def code_of(error: BaseException) -> int:
    """The exit code that belongs to an error."""
    if isinstance(error, ConfigurationError | LinkError):
        return USAGE
    if isinstance(error, RejectedError) and error.code in _REFUSALS:
        return _REFUSALS[error.code]
    if isinstance(error, RemoteError):
        return REMOTE
    if isinstance(error, StorageError | IdentityError):
        return STORAGE
    if isinstance(error, NoStateError):
        return NO_STATE
    return LOCAL if isinstance(error, LocalError) else CHECK_FAILED


def advice(error: BaseException) -> str:
    """What to do now, where the message does not say so itself."""
    if not isinstance(error, RemoteError) or error.phase in ("login", "banned"):
        return ""
    if isinstance(error, RejectedError) and error.code in (RefusalCode.ACCESS, RefusalCode.BANNED, *_REFUSALS):
        return ""  # the message says what to do, and nothing is wrong with the way to the run
    return "Run `minga doctor LINK` to see which hop fails."


def report(error: BaseException, *, json_output: bool) -> int:
    """Say on stderr what failed (with `json_output` also as the last line of stdout); the exit code.

    Each line of the error's text is one mistake, and stays a line.
    """
    code = code_of(error)
    lines = (" ".join(line.split()) for line in str(error).splitlines())
    message = "\n".join(filter(None, lines)) or type(error).__name__
    hint = advice(error)
    stop = "" if not hint else " " if message.endswith((".", "!", "?")) else ". "
    said = "\n".join(f"minga: {line}" for line in f"{message}{stop}{hint}".split("\n"))
    print(_fitted(said, sys.stderr), file=sys.stderr, flush=True)
    if json_output:
        fields: dict[str, object] = {"summary": True, "ok": False, "error": type(error).__name__, "message": message}
        if isinstance(error, RemoteError):
            fields |= {"peer": error.peer, "round": error.round, "phase": error.phase}
        _print_last_line({**fields, "exit_code": code})
    return code


def is_usage_error(error: Any) -> bool:
    """Whether the command line's parser raised it; its classes have no stable public name."""
    return callable(getattr(error, "show", None)) and callable(getattr(error, "format_message", None))


def report_usage(error: Any, *, json_output: bool) -> int:
    """Say what is wrong with the command line."""
    error.show()
    if json_output:
        fields = {"summary": True, "ok": False, "error": "UsageError", "message": error.format_message()}
        _print_last_line({**fields, "exit_code": USAGE})
    return USAGE


def report_interrupt(*, json_output: bool, code: int = INTERRUPTED) -> int:
    """Say once that Ctrl-C ended the command, or with `TERMINATED` as `code` another signal, and what it had done,
    unless the command has said so itself. On any thread.
    """
    with _telling:
        if not interrupts_told:
            _tell_interrupt(code, json_output=json_output)
            interrupts_told.append(code)
    return code


def _tell_interrupt(code: int, *, json_output: bool) -> None:
    done = {name: value for tell in done_so_far for name, value in tell().items()}
    if farewells and not json_output:
        with _NOBODY_READS:
            print(_fitted(farewells[-1](done), sys.stdout), flush=True)
        return
    where = f" at step {done['step']}" if "step" in done else ""
    what = f", with {counted(done['samples'], 'sample')} of this machine" if "samples" in done else ""
    kept = f"; the newest checkpoint is of step {done['checkpoint']}" if "checkpoint" in done else ""
    with _NOBODY_READS:
        print(f"minga: interrupted{where}{what}{kept}", file=sys.stderr, flush=True)
    if json_output:
        name = "KeyboardInterrupt" if code == INTERRUPTED else "Terminated"
        fields = {"summary": True, "ok": False, "error": name, "message": "interrupted", **done}
        _print_last_line({**fields, "exit_code": code})


def _fitted(text: str, stream: TextIO) -> str:
    """The text with lines broken at spaces, where a terminal would break them inside of words; a line that is a command
    stays one, to be copied.
    """
    if not stream.isatty():
        return text
    fit = TextWrapper(shutil.get_terminal_size().columns, break_long_words=False, break_on_hyphens=False).fill
    return "\n".join(line if line.startswith("minga ") else fit(line) for line in text.split("\n"))


def _print_last_line(fields: dict[str, object]) -> None:
    for prepare in before_last_line:
        prepare()
    with _NOBODY_READS:
        print(json.dumps(fields), flush=True)
