"""The synchronous strategy: the trainer waits while its gradients are averaged."""

from __future__ import annotations

from minga.averaging.strategy_choice import StrategyFacts
from minga.training.replica.gradient_sum import GradientSum
from minga.training.strategy.gradient_sums import GradientSums


class Synchronous(GradientSums):
    """One buffer; the trainer waits while it is averaged."""

    facts = StrategyFacts(max_in_flight=0, keeps_late_micro_batches=False, vectors=1)

    def _complete(self) -> GradientSum:
        return self._sum

    def _forget_count(self) -> None:
        self._samples = 0
