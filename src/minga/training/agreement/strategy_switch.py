"""Another strategy goes on from a step, at one boundary for all peers.

The training thread changes it when it has absorbed the round that leads to that step, and before the state of that step
is hashed, served or written. Nothing is in flight then. The state of the step is the new strategy's: it consists of the
parameters, and of the optimizer's numbers, if both strategies share these. What peers had of their own for the old one
is dropped: samples that were collected beside the round, and what codecs and sketches had left out.
"""

from __future__ import annotations

from minga.averaging.codecs.round_vectors import RoundVectors
from minga.averaging.strategy_choice import StrategyChoice
from minga.core.events.training import StrategyChanged
from minga.training.bridge.gradient_port import GradientPort
from minga.training.replica.interface import ReplicaInterface


class StrategySwitch:
    """Changes the strategy behind `port`."""

    def __init__(self, replica: ReplicaInterface, port: GradientPort, vectors: RoundVectors) -> None:
        self._replica, self._port, self._vectors = replica, port, vectors
        self._changed: StrategyChanged | None = None
        port.on_strategy = self._note

    def to(self, strategy: StrategyChoice) -> None:
        """Have this one go on, unless it is the present one. For the training thread, between two rounds."""
        if strategy.name != self._port.strategy:
            self._port.change(strategy)

    def said(self) -> StrategyChanged | None:
        """What the last change dropped, once. On the loop, after the training thread was there."""
        changed, self._changed = self._changed, None
        return changed

    def _note(self, samples: int) -> None:
        """On the training thread: another strategy goes on, also where a state was fetched that is of another."""
        residuals = self._vectors.begin_anew(keeps_uncounted=self._port.facts.keeps_uncounted)
        self._replica.forget_left_out()
        self._changed = StrategyChanged(
            step=self._replica.step,
            strategy=self._port.strategy,
            dropped_samples=samples,
            dropped_residuals=residuals,
        )
