"""How long the phases of a round took at this peer: computing, waiting, communicating, applying."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from minga.core.events.averaging import RoundAborted, RoundBegun, RoundReduced
from minga.core.events.bus import Event
from minga.core.events.training import StepApplied

LONGEST_APPLY_S: Final = 3600.0


@dataclass(frozen=True)
class RoundTimes:
    """The phases of one round, in seconds.

    The group took `forming_s` to form, in which peers computed and waited. `members` took part, of whom `lost` dropped
    out.
    """

    step: int
    forming_s: float
    communicate_s: float
    apply_s: float
    members: int
    lost: int
    batch: int

    def computing_s(self, samples_per_second: float) -> float:
        """How much of the forming was computing the batch, at this speed of the swarm; the rest was waiting."""
        if samples_per_second <= 0.0:
            return self.forming_s
        return min(self.forming_s, self.batch / samples_per_second)


class RoundClock:
    """Takes the events of one peer in their order."""

    def __init__(self) -> None:
        self._begun: RoundBegun | None = None
        self._reduced: tuple[float, RoundReduced] | None = None

    def on_event(self, event: Event) -> RoundTimes | None:
        """The times of a round, once its step is applied."""
        data = event.data
        if isinstance(data, RoundBegun):
            self._begun, self._reduced = data, None
        elif isinstance(data, RoundReduced):
            self._reduced = event.time, data
        elif isinstance(data, RoundAborted):
            self._begun = self._reduced = None
        elif isinstance(data, StepApplied):
            return self._finish(event.time, data)
        return None

    def _finish(self, now_s: float, applied: StepApplied) -> RoundTimes | None:
        begun, reduced = self._begun, self._reduced
        self._begun = self._reduced = None
        if begun is None or reduced is None or begun.step != reduced[1].step:
            return None
        return RoundTimes(
            step=applied.step,
            forming_s=max(0.0, begun.waited_s),
            communicate_s=max(0.0, reduced[1].seconds),
            apply_s=min(LONGEST_APPLY_S, max(0.0, now_s - reduced[0])),
            members=begun.members,
            lost=reduced[1].lost,
            batch=applied.batch,
        )
