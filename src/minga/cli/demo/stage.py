"""The processes of a demo, what they say, and what is told of it."""

from __future__ import annotations

import contextlib
import os
import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from minga.cli.terminal.output import Output
from minga.core.errors import LocalError
from minga.notebook.command import Command

BACKGROUND_NICENESS = 5

SETUP_LIMIT_S = 900.0
"""A machine with much else to do may take minutes to prepare data; a process that ends by itself is noticed at once."""

PROGRESS_PERIOD_S = 10.0
LAST_WORDS_S = 1.0
"""How long, at most, what an ended process said is read."""

GRACE_S = 0.2
"""How long children may take to end by themselves when the demo is broken off; Ctrl-C has to work within a second."""


class Child(Command):
    """A peer, `minga ARGUMENTS`, as a process named `name`. Its events are kept in `events` and put into `inbox`."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path, inbox: queue.Queue[tuple[Child, Any]]) -> None:
        self.name, self.begun = name, time.time()
        self.events: list[dict[str, Any]] = []
        self._inbox = inbox
        super().__init__(arguments, self._note, log)
        self.listen()

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

    def kill(self) -> None:
        """End it at once, without any chance to say goodbye."""
        self.process.kill()
        self.process.wait()

    def trouble(self) -> LocalError:
        """What its end means for people who watch."""
        why = self.complaint().strip().rpartition("\n")[2].removeprefix("minga: ")[:300]
        return LocalError(
            f"{self.name} ended by itself{f': {why}' if why else f' with exit code {self.process.poll()}'}"
        )

    def _note(self, event: Mapping[str, Any] | None) -> None:
        if event is not None:
            self.events.append(dict(event))
        self._inbox.put((self, event or {"event": "ended"}))


class Stage:
    """Starts children, and hears of their events. `told` is what people were told, with the time since the beginning.

    Times are Unix times, since they are compared with those that children report.
    """

    def __init__(self, directory: Path, output: Output) -> None:
        self.directory, self.told = directory, list[str]()
        self.children: list[Child] = []
        self._output, self._begun = output, time.time()
        self._inbox: queue.Queue[tuple[Child, Any]] = queue.Queue()
        self._killed: set[Child] = set()

    def start(self, name: str, arguments: Sequence[str]) -> Child:
        """`minga ARGUMENTS` as a process with a home of its own."""
        slug = name.replace(" ", "-")
        own = ["--directory", str(self.directory / "peers" / slug), "--bind", "127.0.0.1"]
        own += ["--ephemeral", "--threads", "1"]
        child = Child(name, [*arguments, *own], self.directory / "logs" / f"{slug}.jsonl", self._inbox)
        self.children.append(child)
        return child

    def kill(self, child: Child) -> None:
        """End it at once, without any chance to say goodbye."""
        self._killed.add(child)
        child.kill()

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait. Raises `LocalError` if a child ends by itself, or after a quarter of an hour."""
        deadline = time.monotonic() + SETUP_LIMIT_S
        while not is_so():
            if time.monotonic() > deadline:
                raise LocalError(f"waited {SETUP_LIMIT_S:.0f} s in vain until {what}; see {self.directory / 'logs'}")
            self.listen(0.2)

    def listen(self, seconds: float, *, expect_ends: bool = False) -> None:
        """Wait for the next event. Raises `LocalError` if it is the end of a child that nobody expects."""
        try:
            child, event = self._inbox.get(timeout=max(0.01, seconds))
        except queue.Empty:
            return
        if event.get("event") == "ended" and child not in self._killed and not expect_ends:
            raise child.trouble()

    def watch(self, until: float) -> Iterator[bool]:
        """Hear of events until that Unix time; after each whether it is time to tell people how it goes."""
        told = time.monotonic()
        while (left := until - time.time()) > 0:
            self.listen(min(0.5, left))
            is_time = time.monotonic() - told > PROGRESS_PERIOD_S
            if is_time:
                told = time.monotonic()
            yield is_time

    def end(self, at: int, limit_s: float, children: Sequence[Child] = ()) -> int:
        """Let these children, or else all, finish in order after step `at`; how many still run after `limit_s`."""
        remaining = [child for child in children or self.children if child not in self._killed]
        for child in remaining:
            child.finish_at(at)
        deadline = time.monotonic() + limit_s
        while any(child.is_running for child in remaining) and time.monotonic() < deadline:
            self.listen(0.1, expect_ends=True)
        for child in remaining:
            if not child.is_running:
                child.wait(LAST_WORDS_S)
        return sum(child.is_running for child in remaining)

    def tell(self, text: str, **fields: Any) -> None:
        """A line for people, with the time since the demo began."""
        elapsed = int(time.time() - self._begun)
        self.told.append(f"{elapsed // 60}:{elapsed % 60:02d}  {text}")
        self._output.say(self.told[-1])
        self._output.event("demo", text=text, **fields)

    def abandon(self) -> None:
        """End whatever still runs; safe to call at any time and from any thread."""
        for child in self.children:
            child.hang_up()
        deadline = time.monotonic() + GRACE_S
        for child in self.children:
            if not child.wait(max(0.0, deadline - time.monotonic())):
                child.kill()
