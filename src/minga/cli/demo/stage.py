"""The processes of a demo, what they say, and what is told of it."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from minga.cli.demo.child import Child
from minga.cli.terminal.output import Output
from minga.core.errors import LocalError

SETUP_LIMIT_S = 900.0
"""A machine with much else to do may take minutes to prepare data; a process that ends by itself is noticed at once."""

GRACE_S = 0.2
"""How long children may take to end by themselves when the demo is broken off; Ctrl-C has to work within a second."""


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
        own = ["--directory", str(self.directory / "peers" / slug), "--host", "127.0.0.1"]
        own += ["--ephemeral", "--threads", "1", "--leash", "--json"]
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

    def end(self, at: int, limit_s: float, children: Sequence[Child] = ()) -> int:
        """Let these children, or else all, finish in order after step `at`; how many still run after `limit_s`."""
        remaining = [child for child in children or self.children if child not in self._killed]
        for child in remaining:
            child.finish_at(at)
        deadline = time.monotonic() + limit_s
        while any(child.is_alive for child in remaining) and time.monotonic() < deadline:
            self.listen(0.1, expect_ends=True)
        for child in remaining:
            child.wait(0.0)
        return sum(child.is_alive for child in remaining)

    def tell(self, text: str, **fields: Any) -> None:
        """A line for people, with the time since the demo began."""
        elapsed = int(time.time() - self._begun)
        self.told.append(f"{elapsed // 60}:{elapsed % 60:02d}  {text}")
        self._output.say(self.told[-1])
        self._output.event("demo", text=text, **fields)

    def abandon(self) -> None:
        """End whatever still runs; safe to call at any time and from any thread."""
        for child in self.children:
            child.let_go()
        deadline = time.monotonic() + GRACE_S
        for child in self.children:
            if not child.wait(max(0.0, deadline - time.monotonic())):
                child.kill()
