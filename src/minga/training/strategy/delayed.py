"""The delayed strategy: the trainer goes on while its gradients are averaged, one step behind."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from minga.averaging.strategy_choice import StrategyFacts
from minga.training.strategy.interface import Strategy


class Delayed(Strategy):
    """Two buffers: one is averaged while the trainer goes on into the other, so gradients are at most one step old."""

    facts = StrategyFacts(max_in_flight=1, keeps_late_micro_batches=True, vectors=2)

    def __init__(self, new_vector: Callable[[], torch.Tensor], condition: threading.Condition, *, unit: int) -> None:
        super().__init__(new_vector, condition, unit=unit)
        self._aside = new_vector()
        self._aside_samples = 0

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
        self._vector, self._aside = self._aside, self._vector
        self._samples, self._aside_samples = 0, self._samples

    def merge(self) -> None:
        """What lies aside counts towards the open step again."""
        self._vector.add_(self._aside)
        self._aside.zero_()
        with self._condition:
            self._samples, self._aside_samples = self.samples, 0

    def absorb(self, *, everything: bool) -> None:
        """See `Strategy`."""
        if everything:
            self._vector.zero_()
            with self._condition:
                self._samples = 0
        self._forget_complete()

    def _complete(self) -> torch.Tensor:
        return self._aside

    def _forget_count(self) -> None:
        self._aside_samples = 0
