"""The last problem of this peer, for displays: failures that do not end it and would stay unseen otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from minga.core.events.averaging import GroupMinority
from minga.core.events.bus import Event
from minga.core.events.network import PeerRefused
from minga.core.events.security import SecureBanned
from minga.core.events.split import SplitSuspicious
from minga.core.events.training import (
    CheckpointFailed,
    CheckpointNotUploaded,
    MemberFailed,
    MemberUnfit,
    ParametersNotAveraged,
    RunFileFailed,
    RunFinished,
    StateCacheFailed,
    StepApplied,
    SyncFailed,
    SyncFinished,
    TrainingNotNeeded,
    TrainingTooSlow,
    TrainingTwin,
)
from minga.core.printable import printable

MEANINGS = {
    CheckpointFailed.kind: "a checkpoint was not saved",
    CheckpointNotUploaded.kind: "an archived checkpoint was not copied",
    GroupMinority.kind: "no step can be taken",
    MemberFailed.kind: "this peer no longer takes part in steps",
    MemberUnfit.kind: "another peer's program does not fit this run",
    ParametersNotAveraged.kind: "the parameters were not averaged",
    PeerRefused.kind: "another peer does not let this one in",
    SecureBanned.kind: "a member was banned",
    RunFileFailed.kind: "a file of the run did not come",
    SplitSuspicious.kind: "what the server of the cut model sends may be wrong",
    StateCacheFailed.kind: "the downloaded state is not kept on the disk",
    SyncFailed.kind: "the state did not come",
    TrainingNotNeeded.kind: "this peer finds no work",
    TrainingTooSlow.kind: "this peer's samples do not count for now",
    TrainingTwin.kind: "this peer computes what another one does",
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
        """The problem and its reason, in one line."""
        return f"{MEANINGS[self.kind]}: {self.reason}"


class LastTrouble:
    """Remembers the newest problem among the events that it receives."""

    def __init__(self) -> None:
        self._count = 0
        self._lasting: tuple[int, Event] | None = None  # with its number
        self._minority: tuple[int, Event] | None = None

    def on_event(self, event: Event) -> None:
        """Look at one event; on the thread that emits it. Of a minority nothing remains once it has a further step."""
        if isinstance(event.data, StepApplied | SyncFinished | RunFinished):
            self._minority = None
        elif event.kind in MEANINGS:
            self._count += 1
            if event.kind == GroupMinority.kind:
                self._minority = self._count, event
            else:
                self._lasting = self._count, event

    def at(self, time: float) -> Trouble | None:
        """The newest trouble as of `time`, in seconds of the loop; on the same thread."""
        found = [each for each in (self._lasting, self._minority) if each is not None]
        if not found:
            return None
        number, event = max(found, key=lambda each: each[0])
        reason = _reason(event)
        # Reasons may quote what another peer sent: nothing in them may command a terminal.
        return Trouble(number, event.kind, printable(reason[:MAX_REASON_LETTERS]), max(0.0, time - event.time))


def _reason(event: Event) -> str:
    fields = event.fields
    reason = str(fields.get("why") or fields.get("reason") or "for no known reason")
    if event.kind in (MemberUnfit.kind, SecureBanned.kind) and "peer" in fields:
        return f"{str(fields['peer'])[:10]}: {reason}"
    return reason
