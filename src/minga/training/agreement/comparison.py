"""Comparing one member's state with that of the others, and how long its parameters may drift.

Theory of operation. With an optimizer of `minga.optim` equal means give equal states, and a digest that differs is a
fault. Any other optimizer may round differently on another kind of device. Then peers publish a sketch of their
parameters beside the digest, and tolerate what rounding explains: a small share of the length of the last step, which a
peer that missed a step exceeds, and in any case a few last bits of the parameters. The numbers that the optimizer keeps
are not compared: where they are wrong, the parameters follow soon. How far peers drift decides how often they average
their parameters (`averaging_interval`).
"""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Final

from minga.core.thread_guard import loop_bound
from minga.network.gossip.board import Board
from minga.network.interface import PeerId
from minga.training.agreement.averaging_interval import AveragingInterval
from minga.training.agreement.state_history import StateHistory, Told, is_same
from minga.training.record_kinds import StateInfo
from minga.training.replica.interface import ReplicaInterface
from minga.training.state.sketch import Sketch, distance, length

STEP_SHARE: Final = 0.25
"""Share of the last step's length by which parameters may differ."""
LAST_BITS: Final = 2.0**-18
"""Share of the parameters' length by which they may differ in any case: sixty times the rounding of a float32."""


class StateMeasure:
    """What the training thread measures of one step: `begin` before the replica takes it, `end` after."""

    def __init__(self, replica: ReplicaInterface, *, has_sketch: bool) -> None:
        self._replica, self._has_sketch = replica, has_sketch
        self._before: Sketch = ()

    def begin(self) -> None:
        """The step is about to be taken."""
        if self._has_sketch:
            self._before = self._replica.sketch()

    def end(self) -> StateInfo:
        """The step was taken. Without a sketch where the parameters are not finite."""
        digest, step = self._replica.digest(), self._replica.step
        if not self._has_sketch:
            return StateInfo(step, digest)
        after = self._replica.sketch()
        tolerance = max(STEP_SHARE * distance(self._before, after), LAST_BITS * length(after))
        return self._told(step, digest, after, tolerance)

    def at_rest(self) -> StateInfo:
        """The same of a state that came by no step: it tolerates a few last bits only."""
        digest, step = self._replica.digest(), self._replica.step
        if not self._has_sketch:
            return StateInfo(step, digest)
        return self._told(step, digest, sketch := self._replica.sketch(), LAST_BITS * length(sketch))

    def _told(self, step: int, digest: str, sketch: Sketch, tolerance: float) -> StateInfo:
        if not math.isfinite(tolerance):
            return StateInfo(step, digest)
        return StateInfo(step, digest, sketch, tolerance, self._replica.trains)


@loop_bound
class StateComparison:
    """Publishes this peer's states and compares them with those of the others, every `every` steps.

    Among peers that began at once, each with parameters of its own, those of the `organiser` are meant.
    """

    def __init__(
        self,
        board: Board,
        replica: ReplicaInterface,
        every: int,
        interval: AveragingInterval,
        organiser: PeerId | None = None,
    ) -> None:
        self.interval, self._meant = interval, () if organiser is None else (organiser,)
        self._board, self._replica, self._every = board, replica, every
        self._has_sketch = interval.is_fixed or not replica.rounds_alike
        self._history = StateHistory()

    def is_due(self, step: int) -> bool:
        """Whether states are compared after `step`: now and then, and after the first one, since peers that came at the
        same time each began with what it had.
        """
        return step % self._every == 0 or step == 1

    def measure(self) -> StateMeasure:
        """For the training thread."""
        return StateMeasure(self._replica, has_sketch=self._has_sketch)

    def publish(self, state: StateInfo) -> None:
        """Tell the others this peer's state."""
        self._history.add(state)
        self._board.put(state)

    def has_own(self, step: int) -> bool:
        """Whether this peer told its state of `step`, and has it still."""
        return self._history.of(step) is not None

    def clear(self) -> None:
        """The state was replaced."""
        self._history.clear()

    def is_diverged(self, others: set[PeerId], finished: Container[PeerId] = ()) -> bool:
        """Whether most of `others`, as far as they published theirs, have another state than this peer; or as many as
        have this one's, and those that `finished` or the organiser, in this order, are among them.
        """
        return self._history.is_minority(self._told(others), self._board.peer_id, finished, self._meant)

    def has_told(self, other: PeerId, step: int) -> bool:
        """Whether one peer published its state of `step` or of a later one."""
        told = self._board.payloads(StateInfo).get(other)
        return told is not None and told.step >= step

    def differs(self, other: PeerId, step: int) -> bool:
        """Whether one peer published another state of `step` than this one."""
        own, told = self._history.of(step), self._board.payloads(StateInfo).get(other)
        return own is not None and told is not None and told.step == step and not is_same(own, told)

    def choose_interval(self, step: int, others: set[PeerId]) -> int:
        """What this peer as a leader writes into the plan of the round that leads to `step`; see `Plan`."""
        regular = [(peer, state) for peer, state in self._told(others) if state.step % self._every == 0]
        return self.interval.choose(step, self._history.drift(regular))

    def _told(self, others: set[PeerId]) -> list[Told]:
        return [(peer, state) for peer, state in self._board.payloads(StateInfo).items() if peer in others]
