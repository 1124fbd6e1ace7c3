"""What a command shows while it runs: JSON lines, plain lines, or a live display on a terminal."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live

QUIET_EVENTS = frozenset({"sync.progress", "member.status", "record.ignored", "state.published"})
"""Events that come too often to be lines of the JSON output."""

REFRESH_S = 0.25
PLAIN_PERIOD_S = 5.0
"""Seconds between two plain lines of progress where there is no terminal."""


class Output:
    """Where a command writes. Any thread may use it.

    `json_output`: one JSON object per line on stdout; `event` names it, `t` is Unix time, the last has "summary": true.
    """

    def __init__(self, *, json_output: bool) -> None:
        self.json_output = json_output
        self.console = Console(highlight=False, soft_wrap=True)
        self.interactive = self.console.is_terminal and not json_output
        self._lock = threading.Lock()
        self._ended = False

    def event(self, kind: str, **fields: Any) -> None:
        """A line of JSON; nothing for people."""
        if self.json_output and not self._ended and kind not in QUIET_EVENTS:
            self._write_json({"t": round(time.time(), 3), "event": kind, **fields})

    def say(self, text: RenderableType) -> None:
        """A line for people; nothing in JSON."""
        if not self.json_output:
            with self._lock:
                self.console.print(text)

    def summary(self, **fields: Any) -> None:
        """The last line of JSON: what comes after it is dropped."""
        if self.json_output:
            self._write_json({"summary": True, **fields})
            self._ended = True

    def _write_json(self, fields: dict[str, Any]) -> None:
        line = json.dumps(fields, default=str)
        with self._lock:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


class Ticker:
    """Calls `tick` every `REFRESH_S` seconds on a thread of its own, and draws its result as the live display.

    Without a terminal, `plain` gives lines instead: those it returns are printed. An error in a tick is kept in
    `error` and ends the ticker. Use it as a context manager.
    """

    def __init__(
        self,
        output: Output,
        tick: Callable[[], Any],
        draw: Callable[[Any], RenderableType],
        plain: Callable[[Any], Iterable[str]],
    ) -> None:
        self.error: BaseException | None = None
        self._output, self._tick, self._draw, self._plain = output, tick, draw, plain
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="minga-display", daemon=True)

    def __enter__(self) -> Ticker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(1.0)

    def check(self) -> None:
        """Raise the error that ended the ticker, if any."""
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            if self._output.interactive:
                with Live(console=self._output.console, refresh_per_second=1.0 / REFRESH_S, transient=False) as live:
                    self._loop(live)
            else:
                self._loop(None)
        except Exception as error:  # it must reach the main thread, whatever it is
            self.error = error

    def _loop(self, live: Live | None) -> None:
        last_plain = 0.0
        while True:
            stopping = self._stop.wait(REFRESH_S)
            try:
                value = self._tick()
            except Exception:
                if stopping or self._stop.is_set():
                    return  # the peer may be closed by now
                raise
            if live is not None:
                live.update(self._draw(value))
            elif not self._output.json_output and (stopping or time.monotonic() - last_plain > PLAIN_PERIOD_S):
                last_plain = time.monotonic()
                for line in self._plain(value):
                    self._output.say(line)
            if stopping:
                return
