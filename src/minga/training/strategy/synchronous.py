"""Strategies that average gradients: the trainer waits for the mean (synchronous), or goes on meanwhile (delayed)."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence

import torch

from minga.averaging.codecs.residual import ContributionFate
from minga.averaging.strategy_choice import StrategyFacts
from minga.core.errors import NonFiniteError
from minga.core.spec.fields import Section
from minga.training.replica.accelerator import LateVerdict
from minga.training.replica.buffers import flat_movements
from minga.training.replica.gradient_sum import GradientSum
from minga.training.replica.interface import ReplicaInterface
from minga.training.strategy.interface import Strategy

# ---- Sums of gradients, which both strategies send: the replica takes an optimizer step by their mean each round.


class GradientSums(Strategy):
    """Adds up gradients times samples / `unit`, and contributes their mean.

    A contribution that no mean has in it is forgotten as well: it is a gradient of parameters that are gone.
    """

    def __init__(self, condition: threading.Condition, *, unit: int, settings: Section | None = None) -> None:
        super().__init__(condition, unit=unit, settings=settings)
        self._is_contributed = False  # what is complete is a mean at present, no sum
        self._clipped = 1.0  # the factor of the last mean

    def begin(self, replica: ReplicaInterface) -> None:
        """See `Strategy`."""
        super().begin(replica)
        self._sum = replica.new_sum()

    def micro_batch(self, samples: int) -> bool | LateVerdict:
        """See `Strategy`. Interrupted half-way the sum would be wrong: then the step begins anew."""
        try:
            return self._sum.add(samples / self._unit)
        except BaseException:
            self._sum.clear()
            self._count_anew()
            raise

    def contribution(self) -> tuple[torch.Tensor | None, int]:
        """The mean of what is complete; see `Strategy`."""
        complete, samples = self._complete(), self.complete_samples
        if not samples:
            return None, 0
        if self._is_contributed:
            return complete.vector(), samples
        mean = complete.mean(samples / self._unit)
        if mean is None:
            self._forget_complete()
            raise NonFiniteError(f"the sum of the gradients of {samples} samples is not finite")
        self._clipped = self.replica.clip_own(mean)
        self._is_contributed = True
        return mean, samples

    def take_back(self) -> None:
        """See `Strategy`."""
        if self._is_contributed:
            self._is_contributed = False
            vector = self._complete().vector()
            vector[: self.replica.vector.parameters_numel].div_(self._clipped)
            vector.mul_(self.complete_samples / self._unit)

    def absorb(self, round: int, mean: torch.Tensor, fate: ContributionFate) -> None:  # noqa: ARG002
        """Take the optimizer step of all peers."""
        self.replica.apply(mean, round)
        self._forget_complete()

    def restored(
        self,
        shared: Mapping[str, torch.Tensor],  # noqa: ARG002
        round: int,  # noqa: ARG002
        local: Mapping[str, torch.Tensor] | None,  # noqa: ARG002
    ) -> None:
        """Forget all gradients: they are those of other parameters."""
        self._forget_complete()

    @abstractmethod
    def _complete(self) -> GradientSum: ...

    def _forget_complete(self) -> None:
        self._is_contributed = False
        self._complete().clear()
        with self._condition:
            self._forget_count()

    @abstractmethod
    def _forget_count(self) -> None:
        """Under the condition: there are no complete samples."""


# ---- The synchronous strategy: the trainer waits while its gradients are averaged.


class Synchronous(GradientSums):
    """One buffer; the trainer waits while it is averaged."""

    facts = StrategyFacts(max_in_flight=0, keeps_late_micro_batches=False, vectors=1)

    def _complete(self) -> GradientSum:
        return self._sum

    def _forget_count(self) -> None:
        self._samples = 0


# ---- The delayed strategy: the trainer goes on while its gradients are averaged, one step behind.


class Delayed(GradientSums):
    """Two buffers: one is averaged while the trainer goes on into the other, so gradients are at most one step old."""

    facts = StrategyFacts(max_in_flight=1, keeps_late_micro_batches=True, vectors=2)

    def __init__(self, condition: threading.Condition, *, unit: int, settings: Section | None = None) -> None:
        super().__init__(condition, unit=unit, settings=settings)
        self._aside_samples = 0
        self._closed_at: Sequence[torch.Tensor] = ()  # what buffers had moved when that was closed; nothing, if empty
        # Of the movements in the sum that is closed next, or was: to be taken out.
        self._counted = torch.zeros(0, dtype=torch.float32, device="cpu")

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
        self._closed_at = self.replica.moved

    def merge(self) -> None:
        """What lies aside counts towards the open step again."""
        self._sum.merge(self._aside)
        with self._condition:
            self._samples, self._aside_samples = self.samples, 0
        self._closed_at = ()

    def absorb(self, round: int, mean: torch.Tensor, fate: ContributionFate) -> None:
        """See `GradientSums`. Of what buffers moved, that which came beside the round goes on counting, and alone."""
        before, now = flat_movements(self._closed_at), flat_movements(self.replica.moved)
        super().absorb(round, mean, fate)
        if now.numel() and self._samples:
            self.replica.move_buffers(now - before if before.numel() else now)
        if before.numel():
            self._counted = before.mul_(self._samples / self._unit)
        self._closed_at = ()

    def contribution(self) -> tuple[torch.Tensor | None, int]:
        """See `GradientSums`. What an earlier mean has of the movements of buffers is taken out first."""
        if self._aside_samples and self._counted.numel():
            self._aside.add_part(self.replica.vector.parameters_numel, self._counted.neg_())
            self._counted = torch.zeros(0, dtype=torch.float32, device="cpu")
        return super().contribution()

    def restored(
        self, shared: Mapping[str, torch.Tensor], round: int, local: Mapping[str, torch.Tensor] | None
    ) -> None:
        """See `GradientSums`."""
        self._sum.clear()
        self._closed_at = ()
        self._count_anew()
        super().restored(shared, round, local)

    def _count_anew(self, samples: int = 0) -> None:
        super()._count_anew(samples)
        if not self._closed_at:
            self._counted = torch.zeros(0, dtype=torch.float32, device="cpu")

    def _complete(self) -> GradientSum:
        return self._aside

    def _forget_count(self) -> None:
        self._aside_samples = 0
