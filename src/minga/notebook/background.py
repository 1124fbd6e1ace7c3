"""`join` and `host` for notebooks: they return at once, and the cell shows how it goes."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from minga.core.errors import LocalError
from minga.identity.links.links import Link
from minga.notebook.command import Command
from minga.notebook.screen import Screen

HOURS: Final = 8.0
"""How long to take part unless told otherwise: well within the session of a free notebook."""
LINK_S: Final = 600.0
"""Seconds in which a host has its link, with the files of the run prepared."""


class Background:
    """A `minga` command that works beside the notebook, for at most `hours`.

    Its output belongs to the cell that starts it. `stop` ends it in order, and so does the end of the time.
    """

    def __init__(self, title: str, arguments: Sequence[str], hours: float) -> None:
        self.events: dict[str, Mapping[str, Any]] = {}
        """The newest event of each kind."""
        self.link = ""
        """The way into the run: a word of letters and digits, which a shell takes as it is."""
        self._screen = Screen(title)
        self._changed = threading.Condition()
        self._command = Command(arguments, self._on_event)
        self._timer = threading.Timer(hours * 3600.0, self.stop)
        self._timer.daemon = True
        self._timer.start()
        self._command.listen()

    @property
    def is_running(self) -> bool:
        """Whether the command still works."""
        return self._command.is_running

    @property
    def summary(self) -> Mapping[str, Any]:
        """What the command did, such as `steps_contributed` and `samples`; empty while it works."""
        return self._screen.summary

    def stop(self) -> None:
        """Finish the step, say goodbye to the other peers, and end. Does nothing if it has ended."""
        if self.is_running:
            self._screen.state = "leaving"
            self._screen.refresh()
        self._command.stop()

    def wait(self, seconds: float | None = None) -> bool:
        """Block until the command has ended by itself; whether it has, within `seconds`."""
        return self._command.wait(seconds)

    def _on_event(self, event: Mapping[str, Any] | None) -> None:
        with self._changed:
            if event is None:
                self._timer.cancel()
                self._screen.complaint = self._command.complaint()
                self._screen.state = "failed" if self._screen.complaint else "ended"
            elif event.get("summary"):
                self._screen.summary = event
            else:
                kind = str(event.get("event"))
                self.events[kind] = event
                if self._screen.state == "starting":
                    self._screen.state = "working"
                if kind == "progress":
                    self._screen.note_progress(event)
            self._changed.notify_all()
        if event is None or event.get("event") in (None, "progress", "ready", "link"):
            self._screen.refresh()

    def _wait_for(self, kind: str, seconds: float) -> Mapping[str, Any]:
        with self._changed:
            self._changed.wait_for(lambda: kind in self.events or self._screen.state in ("ended", "failed"), seconds)
            if kind in self.events:
                return self.events[kind]
        raise LocalError(self._command.complaint() or f"minga said nothing of its {kind} in {seconds:.0f} s")


def join(link: str, *, hours: float = HOURS, options: Sequence[str] = ()) -> Background:
    """Take part in the run of `link` for at most `hours`; `options` are those of `minga join`.

    Raises `LinkError` for a text that is no link.
    """
    word = str(Link.parse(link))
    joined = Background("minga join", ["join", word, "--yes", *options], hours)
    joined.link = word
    return joined


def host(spec: str | Path, *, hours: float = HOURS, options: Sequence[str] = ()) -> Background:
    """Begin the run that the file `spec` describes and return when it has a link; `options` are those of `minga host`.

    Raises `LocalError` with what the command said if it has none. If the cell is interrupted, the command is ended.
    """
    hosted = Background("minga host", ["host", str(spec), *options], hours)
    try:
        hosted.link = str(hosted._wait_for("link", LINK_S)["link"])  # noqa: SLF001 (its own module)
    except BaseException:  # also when the cell is interrupted: nothing else could end the command then
        hosted.stop()
        raise
    return hosted
