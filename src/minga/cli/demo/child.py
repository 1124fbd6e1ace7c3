"""A peer as a child process of the demo: its events come as JSON lines, and it dies with its parent."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minga.core.errors import LocalError

BACKGROUND_NICENESS = 5

program: tuple[str, ...] = ("-m", "minga")
"""What a child runs, as arguments of the interpreter."""


class Child:
    """`minga ARGUMENTS` as a process named `name`. Its events are kept in `events` and put into `inbox` as well.

    What it says is also written to `log` (JSON lines) and what it complains about to `log` with `.err`, for whoever
    wants to look closer.
    """

    def __init__(self, name: str, arguments: Sequence[str], log: Path, inbox: queue.Queue[tuple[Child, Any]]) -> None:
        self.name, self.begun = name, time.time()
        self.events: list[dict[str, Any]] = []
        self._inbox, self._log = inbox, log
        self._errors = log.with_suffix(".err")
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(  # noqa: S603  this very program, with arguments of its own
                [sys.executable, *program, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._reader = threading.Thread(target=self._read, name=f"minga-read-{name}", daemon=True)
        self._reader.start()

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def first(self, kind: str) -> dict[str, Any] | None:
        """Its first event of this kind."""
        return next((event for event in self.events if event.get("event") == kind), None)

    def of(self, kind: str, field: str) -> list[Any]:
        """What its events of this kind have in a field."""
        return [event[field] for event in list(self.events) if event.get("event") == kind]

    @property
    def summary(self) -> dict[str, Any]:
        """The summary it ended with; empty if there was none."""
        return self.events[-1] if self.events and self.events[-1].get("summary") else {}

    def steps(self) -> list[tuple[float, int, int]]:
        """Unix time, global step and own samples of each step that it applied."""
        return [(e["t"], e["step"], e["samples"]) for e in list(self.events) if e.get("event") == "step.applied"]

    def step_back(self) -> None:
        """Leave the processor to others when they need it, where the system lets us say so."""
        if hasattr(os, "setpriority"):
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self.process.pid, BACKGROUND_NICENESS)

    def finish_at(self, step: int) -> None:
        """Let it finish in order after global step `step`."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self.process.stdin.write(f"end {step}\n".encode())
                self.process.stdin.flush()

    def kill(self) -> None:
        """End it at once, without any chance to say goodbye."""
        self.process.kill()
        self.process.wait()

    def let_go(self) -> None:
        """Close its standard input, upon which it ends by itself."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self.process.stdin.close()

    def wait(self, seconds: float) -> bool:
        """Wait for its end; whether it came in time."""
        deadline = time.monotonic() + seconds
        while self.is_alive and time.monotonic() < deadline:
            time.sleep(0.02)  # not `Popen.wait`: that keeps Ctrl-C from being heard on Windows
        if not self.is_alive:
            self._reader.join(1.0)
        return not self.is_alive

    def trouble(self) -> LocalError:
        """What its end means for people who watch."""
        with contextlib.suppress(OSError):
            lines = self._errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            if lines:
                return LocalError(f"{self.name} ended by itself: {lines[-1].removeprefix('minga: ')[:300]}")
        return LocalError(f"{self.name} ended by itself with exit code {self.process.poll()}")

    def _read(self) -> None:
        pipe = self.process.stdout
        if pipe is None:
            return
        with self._log.open("wb") as log:
            for line in pipe:
                log.write(line)
                log.flush()
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    self.events.append(event)
                    self._inbox.put((self, event))
        self._inbox.put((self, {"event": "ended"}))
