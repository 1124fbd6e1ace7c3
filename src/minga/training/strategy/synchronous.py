"""The synchronous strategy: the trainer waits while its gradients are averaged."""

from __future__ import annotations

import torch

from minga.averaging.strategy_choice import StrategyFacts
from minga.training.strategy.interface import Strategy


class Synchronous(Strategy):
    """One buffer; the trainer waits while it is averaged."""

    facts = StrategyFacts(max_in_flight=0, keeps_late_micro_batches=False, vectors=1)

    @property
    def samples(self) -> int:
        """See `Strategy`."""
        return self._samples

    @property
    def complete_samples(self) -> int:
        """See `Strategy`."""
        return self._samples

    @property
    def has_leftover(self) -> bool:
        """Never: there is nowhere else."""
        return False

    def is_ahead(self, micro_batch: int) -> bool:  # noqa: ARG002
        """Never: nothing is added while a round runs."""
        return False

    def close(self) -> None:
        """Nothing to do: the trainer waits."""

    def merge(self) -> None:
        """Nothing to do: it never stopped counting."""

    def absorb(self, *, everything: bool) -> None:  # noqa: ARG002
        """See `Strategy`."""
        self._forget_complete()

    def _complete(self) -> torch.Tensor:
        return self._vector

    def _forget_count(self) -> None:
        self._samples = 0
