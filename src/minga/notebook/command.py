"""A `minga` command as a process of its own, read by its JSON output."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

from minga.core.errors import LocalError

STOP_S: Final = 60.0
"""Seconds that a command has to finish its step and say goodbye."""
END_S: Final = 10.0
"""Seconds that it has after that to end at once, before it is killed."""
LOOK_S: Final = 0.2
KEPT_ERROR_LINES: Final = 20

program: tuple[str, ...] = ("-m", "minga")
"""What the interpreter runs."""


class Command:
    """The process `python -m minga ARGUMENTS --json`, which ends when this process does.

    From `listen` on `on_event` gets each event (a dictionary with `event`, the summary with `summary`) on a thread of
    its own, and None when the process has ended. What it says is also written to `log` (JSON lines), and what it
    complains about to `log` with `.err`, for whoever wants to look closer.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        on_event: Callable[[Mapping[str, Any] | None], None],
        log: Path | None = None,
    ) -> None:
        self._on_event, self._log = on_event, log
        self._errors: deque[str] = deque(maxlen=KEPT_ERROR_LINES)
        self.process = subprocess.Popen(  # noqa: S603 (this interpreter and our own words)
            [sys.executable, *program, *arguments, "--json", "--leash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        self._error_reader = threading.Thread(target=self._read_errors, name="minga-notebook-errors", daemon=True)
        self._reader = threading.Thread(target=self._read, name="minga-notebook", daemon=True)

    def listen(self) -> None:
        """Begin to read what the process says."""
        self._error_reader.start()
        self._reader.start()

    @property
    def is_running(self) -> bool:
        """Whether the process is still there."""
        return self.process.poll() is None

    def stop(self) -> None:
        """Let the command finish its step and leave; end it if that takes too long. Returns when it has ended.

        Raises `LocalError` if the system cannot end it.
        """
        for ask, seconds in ((partial(self.finish_at, 0), STOP_S), (self.hang_up, END_S), (self.process.kill, END_S)):
            ask()
            if self.wait(seconds):
                return
        if self.is_running:
            raise LocalError(f"the minga process {self.process.pid} cannot be ended")

    def wait(self, seconds: float | None = None) -> bool:
        """Block until the command has ended and all that it said was read; whether it has, within `seconds`."""
        end_s = math.inf if seconds is None else time.monotonic() + seconds
        while self._reader.is_alive() and (left_s := end_s - time.monotonic()) > 0.0:
            self._reader.join(min(left_s, LOOK_S))  # in slices, so that an interrupt is heard everywhere
        return not self._reader.is_alive()

    def complaint(self) -> str:
        """What the command said on its error output, or "" if it ended well."""
        return "" if self.process.poll() == 0 else "\n".join(self._errors)

    def finish_at(self, step: int) -> None:
        """Let it finish in order after global step `step`."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # it has ended already
                self.process.stdin.write(f"end {step}\n")
                self.process.stdin.flush()

    def hang_up(self) -> None:
        """Close its standard input, upon which it ends at once."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # another thread may be doing so
                self.process.stdin.close()

    def _read(self) -> None:
        try:
            for line in _lines(self.process.stdout, self._log):
                with contextlib.suppress(json.JSONDecodeError):
                    event = json.loads(line)
                    if isinstance(event, dict):
                        self._on_event(event)
        finally:  # a log that cannot be written leaves nobody waiting
            self.process.wait()
            self._error_reader.join()
            self.hang_up()
            self._on_event(None)

    def _read_errors(self) -> None:
        log = None if self._log is None else self._log.with_suffix(".err")
        self._errors.extend(line.rstrip() for line in _lines(self.process.stderr, log))


def _lines(stream: IO[str] | None, log: Path | None) -> Iterator[str]:
    """What comes over a pipe, also written to `log` if there is one."""
    if stream is None:
        return
    with stream, contextlib.nullcontext() if log is None else log.open("w", encoding="utf-8") as written:
        for line in stream:
            if written is not None:
                written.write(line)
                written.flush()
            yield line
