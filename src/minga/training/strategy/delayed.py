"""The delayed strategy: the trainer goes on while its gradients are averaged, one step behind."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import torch

from minga.averaging.strategy_choice import StrategyFacts
from minga.core.spec.fields import Section
from minga.training.replica.gradient_sum import GradientSum
from minga.training.replica.interface import ReplicaInterface
from minga.training.strategy.gradient_sums import GradientSums


class Delayed(GradientSums):
    """Two buffers: one is averaged while the trainer goes on into the other, so gradients are at most one step old."""

    facts = StrategyFacts(max_in_flight=1, keeps_late_micro_batches=True, vectors=2)

    def __init__(self, condition: threading.Condition, *, unit: int, settings: Section | None = None) -> None:
        super().__init__(condition, unit=unit, settings=settings)
        self._aside_samples = 0

    def begin(self, replica: ReplicaInterface) -> None:
        """See `Strategy`."""
        super().begin(replica)
        self._aside = replica.new_sum()

    @property
    def samples(self) -> int:
        """See `Strategy`."""
        return self._samples + self._aside_samples

    @property
    def complete_samples(self) -> int:
        """See `Strategy`."""
        return self._aside_samples

    @property
    def has_leftover(self) -> bool:
        """Whether something lies aside."""
        return self._aside_samples > 0

    def is_ahead(self, micro_batch: int) -> bool:
        """Whether the next step has as many samples already as the complete one, but for two micro-batches.

        One begins before the others hear of the next group, and a batch that was too large has to become smaller.
        """
        return 0 < self._aside_samples <= self._samples + 2 * micro_batch and self._samples > 0

    def close(self) -> None:
        """What comes from now on goes into the other buffer."""
        self._sum, self._aside = self._aside, self._sum
        self._samples, self._aside_samples = 0, self._samples

    def merge(self) -> None:
        """What lies aside counts towards the open step again."""
        self._sum.merge(self._aside)
        with self._condition:
            self._samples, self._aside_samples = self.samples, 0

    def restored(
        self, shared: Mapping[str, torch.Tensor], round: int, local: Mapping[str, torch.Tensor] | None
    ) -> None:
        """See `GradientSums`."""
        self._sum.clear()
        self._count_anew()
        super().restored(shared, round, local)

    def _complete(self) -> GradientSum:
        return self._aside

    def _forget_count(self) -> None:
        self._aside_samples = 0
