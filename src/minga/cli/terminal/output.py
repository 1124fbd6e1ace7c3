"""What a command shows while it runs: JSON lines, plain lines, or a live display on a terminal."""

from __future__ import annotations

import json
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from minga.cli.terminal import exit_codes
from minga.core.events.network import RecordIgnored
from minga.core.events.training import MemberStatus, StatePublished, SyncAdvanced

QUIET_EVENTS = frozenset({kind.kind for kind in (SyncAdvanced, MemberStatus, RecordIgnored, StatePublished)})
"""Events that come too often to be lines of the JSON output."""

MAX_WAITING_LINES = 10_000
STOP_S = 0.2
REFRESH_S = 0.25
PLAIN_WIDTH = 120
LEAST_WRAPPED = 16
"""Cells of a column that wraps for which there has to be room."""
PLAIN_PERIOD_S = 5.0
"""Seconds between two plain lines, or JSON events, of progress where there is no terminal."""

IDLE_PERIOD_S = 60.0
"""Seconds between two plain lines while nothing changes."""


def plain_table(*columns: str, left: Collection[str] = (), wraps: str | None = None) -> Table:
    """An empty table without lines. The first column and those in `left` are for words, the others for figures.

    Only the column `wraps` may take more than one line.
    """
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        is_words = column == columns[0] or column in left
        table.add_column(column, justify="left" if is_words else "right", no_wrap=column != wraps)
    return table


@dataclass(frozen=True)
class FittedTable:
    """A table of `rows` under `columns`, without those of `least_first` that a narrow terminal has no room for.

    Only the column `wraps` may take more than one line, where it is longer than `LEAST_WRAPPED`.
    """

    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    left: tuple[str, ...]
    least_first: tuple[str, ...]
    wraps: str | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for count in range(len(self.least_first) + 1):
            dropped = self.least_first[:count]
            least = self._without(dropped, LEAST_WRAPPED)
            if Measurement.get(console, options.update_width(1000), least).maximum <= options.max_width:
                break
        yield self._without(dropped)

    def _without(self, dropped: Collection[str], most_wrapped: int | None = None) -> Table:
        places = [place for place, column in enumerate(self.columns) if column not in dropped]
        table = plain_table(*(self.columns[place] for place in places), left=self.left, wraps=self.wraps)
        for column in table.columns:
            column.max_width = most_wrapped if column.header == self.wraps else None
        for row in self.rows:
            table.add_row(*(row[at] for at in places))
        return table


@dataclass(frozen=True)
class Display:
    """What a command shows of one moment, or of what it found. Texts are plain, without markup.

    A terminal shows `parts`, live ones in a frame with `title`; programs get `values`. Live output without a terminal
    is `lines`, printed when `news` (without it, they) are others than before; and the text of each of `notices` when
    its state is another than before, which at first is False.
    """

    parts: Sequence[RenderableType]
    values: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    subtitle: str | None = None
    lines: Sequence[str] = ()
    news: object = None
    notices: Mapping[str, tuple[object, str]] = field(default_factory=dict)

    def framed(self) -> RenderableType:
        """All parts together."""
        texts = Group(*(Text(part) if isinstance(part, str) else part for part in self.parts))
        title = Text(self.title)
        subtitle = None if self.subtitle is None else Text(self.subtitle)
        return Panel(texts, title=title, subtitle=subtitle, title_align="left") if self.title else texts


class _PlainConsole(Console):
    """Texts mean themselves: brackets are no markup and colons no emoji, since names of runs and folders have them.

    It leaves it to `main` what to do when whoever read the output is gone.
    """

    def __init__(self, *, width: int | None = None) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, width=width)

    def on_broken_pipe(self) -> None:
        """Called while the error is handled."""
        raise BrokenPipeError


class Output:
    """Where a command writes. Any thread may use it.

    `json_output`: one JSON object per line on stdout; `event` names it, `t` is Unix time, the last has "summary": true.
    Lines are written by a thread of their own, since nothing in a peer may wait for whoever reads a pipe; if that
    reader is slower than events come, events are left out and `left_out` in the summary counts them.
    """

    def __init__(self, *, json_output: bool) -> None:
        self.json_output = json_output
        self.console = _PlainConsole()
        if not self.console.is_terminal:
            self.console = _PlainConsole(width=PLAIN_WIDTH)
        self.interactive = self.console.is_terminal and not json_output
        self._lock = threading.Lock()
        self._ended = False
        self._left_out = 0
        self._refusal: OSError | None = None
        self._lines: queue.Queue[str] = queue.Queue(MAX_WAITING_LINES)
        if json_output:
            threading.Thread(target=self._write_forever, name="minga-output", daemon=True).start()
            exit_codes.before_last_line.append(self.stop)

    @property
    def can_ask(self) -> bool:
        """Whether a person is at the terminal who reads a question and can answer it."""
        return self.interactive and sys.stdin.isatty()

    def event(self, kind: str, **fields: Any) -> None:
        """A line of JSON; nothing for people."""
        if self.json_output and not self._ended and kind not in QUIET_EVENTS:
            try:
                self._lines.put_nowait(_line({"t": round(time.time(), 3), "event": kind, **fields}))
            except queue.Full:
                self._left_out += 1

    def say_whole(self, text: str) -> None:
        """Lines to copy, such as a command or a link: they stay whole. Nothing in JSON."""
        if not self.json_output:
            with self._lock:
                self.console.print(text, soft_wrap=True)

    def say(self, text: RenderableType) -> None:
        """A line for people; nothing in JSON. A terminal that is too narrow for it gets it broken at spaces, unless it
        holds a word of more than a line, such as a link: people copy that with what stands before it.
        """
        if not self.json_output:
            words = str(text).split() if isinstance(text, str | Text) else []
            is_whole = bool(words) and (not self.interactive or max(map(len, words)) > self.console.width)
            with self._lock:
                self.console.print(text, soft_wrap=is_whole)

    def show(self, view: Display) -> None:
        """What a command found: its parts for people, its values as the last line of JSON."""
        for part in view.parts:
            self.say(part)
        self.summary(ok=True, **view.values)

    def summary(self, **fields: Any) -> None:
        """The last line of JSON: what comes after it is dropped. Raises `OSError` if a full disk refused any line."""
        if self.json_output:
            self._ended = True
            self._lines.put(_line({"summary": True, **fields, "left_out": self._left_out}))
            self._lines.join()
            if self._refusal is not None:
                raise self._refusal

    def stop(self) -> None:
        """Drop further events, and wait a moment for those that were not written yet."""
        self._ended = True
        deadline = time.monotonic() + STOP_S
        while self._lines.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.005)

    def _write_forever(self) -> None:
        while True:
            line = self._lines.get()
            # Below Python's buffered stdout: a thread inside it would hold its lock while the interpreter ends.
            data = line.encode()
            try:
                while data:
                    data = data[os.write(sys.stdout.fileno(), data) :]
            except AttributeError:  # there is no stdout
                pass
            except OSError as error:
                if error.errno in exit_codes.FULL:  # else whoever read the pipe is gone
                    self._refusal = error
            self._lines.task_done()


def _line(fields: dict[str, Any]) -> str:
    return json.dumps(fields, default=str) + "\n"


class Ticker:
    """Calls `look` every `REFRESH_S` seconds on a thread of its own, and draws the view as the live display.

    Without a terminal it prints the view's lines instead, if there is news, and else each minute. With JSON output its
    values, if it has some, become an event `progress` every `PLAIN_PERIOD_S`. An error of `look` is kept in `error` and
    ends the ticker. Use it as a context manager.
    """

    def __init__(self, output: Output, look: Callable[[], Display]) -> None:
        self.error: BaseException | None = None
        self._output, self._look = output, look
        self._told_at, self._told = -math.inf, object()
        self._noticed: dict[str, object] = {}
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
                view = self._look()
            except Exception:
                if stopping or self._stop.is_set():
                    return  # the peer may be closed by now
                raise
            if live is not None:
                live.update(view.framed())
            elif stopping or time.monotonic() - last_plain > PLAIN_PERIOD_S:
                last_plain = time.monotonic()
                self._tell(view)
            if stopping:
                return

    def _tell(self, view: Display) -> None:
        if self._output.json_output:
            if view.values:
                self._output.event("progress", **view.values)
            return
        news = view.lines if view.news is None else view.news
        if news != self._told or time.monotonic() - self._told_at >= IDLE_PERIOD_S:
            self._told, self._told_at = news, time.monotonic()
            for line in view.lines:
                self._output.say(line)
        for name, (state, text) in view.notices.items():
            if state != self._noticed.get(name, False):
                self._output.say(text)
            self._noticed[name] = state
