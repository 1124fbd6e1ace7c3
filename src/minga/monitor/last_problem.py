"""What went wrong at this peer lately, for displays: failures that do not end it, which nobody would see otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from minga.core.events import Event

MEANINGS = {
    "checkpoint.failed": "a checkpoint was not saved",
    "member.failed": "this peer no longer takes part in steps",
    "parameters.not_averaged": "the parameters were not averaged",
    "secure.banned": "a member was banned",
    "run.file_failed": "a file of the run did not come",
    "state.cache_failed": "the downloaded state is not kept on the disk",
    "sync.failed": "the state did not come",
    "training.too_slow": "this peer's samples do not count for now",
}
"""The kinds of events that are trouble, and what they mean."""

MAX_REASON_LETTERS = 300


@dataclass(frozen=True)
class Trouble:
    """One event of `MEANINGS`. `age_s` is how long ago it was, `number` counts those of this peer from 1 on."""

    number: int
    kind: str
    reason: str
    age_s: float

    @property
    def text(self) -> str:
        """What happened and why, in one line."""
        return f"{MEANINGS[self.kind]}: {self.reason}"


class LastTrouble:
    """Remembers the newest trouble among the events that it is told."""

    def __init__(self) -> None:
        self._number = 0
        self._event: Event | None = None

    def on_event(self, event: Event) -> None:
        """Look at one event; on the thread that emits it."""
        if event.kind in MEANINGS:
            self._number += 1
            self._event = event

    def at(self, time: float) -> Trouble | None:
        """The newest trouble as of `time`, in seconds of the loop; on the same thread."""
        if self._event is None:
            return None
        fields = self._event.fields
        reason = str(fields.get("why") or fields.get("reason") or "for no known reason")
        if self._event.kind == "secure.banned" and "peer" in fields:
            reason = f"{str(fields['peer'])[:10]}: {reason}"
        # Reasons may quote what another peer sent: nothing in them may command a terminal.
        printable = "".join(letter if letter.isprintable() else " " for letter in reason[:MAX_REASON_LETTERS])
        return Trouble(self._number, self._event.kind, printable, max(0.0, time - self._event.time))
