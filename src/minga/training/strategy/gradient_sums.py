"""Strategies that send mean gradients: sums of them, of which the replica takes an optimizer step each round."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Mapping

import torch

from minga.averaging.codecs.dense import CONTRIBUTION_LIMIT, is_finite
from minga.core.errors import NonFiniteError
from minga.core.spec.fields import Section
from minga.training.replica.interface import ReplicaInterface
from minga.training.strategy.interface import ContributionFate, Strategy


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
        self._vector = replica.vector.new()

    def micro_batch(self, samples: int) -> bool:
        """See `Strategy`. Interrupted half-way the sum would be wrong: then the step begins anew."""
        try:
            return self.replica.accumulate(self._vector, samples / self._unit)
        except BaseException:
            self._vector.zero_()
            self._count_anew()
            raise

    def contribution(self) -> tuple[torch.Tensor | None, int]:
        """The mean of what is complete; see `Strategy`."""
        vector, samples = self._complete(), self.complete_samples
        if not samples:
            return None, 0
        if not self._is_contributed:
            try:
                self._to_mean(vector, samples)
            except NonFiniteError:
                self._forget_complete()
                raise
            self._is_contributed = True
        return vector, samples

    def take_back(self) -> None:
        """See `Strategy`."""
        if self._is_contributed:
            self._is_contributed = False
            self._to_sum(self._complete(), self.complete_samples)

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
    def _complete(self) -> torch.Tensor: ...

    def _forget_complete(self) -> None:
        self._is_contributed = False
        self._complete().zero_()
        with self._condition:
            self._forget_count()

    @abstractmethod
    def _forget_count(self) -> None:
        """Under the condition: there are no complete samples."""

    def _to_mean(self, vector: torch.Tensor, samples: int) -> None:
        """Make the sum over `samples` samples what is contributed, in place. Raises `NonFiniteError`."""
        vector.div_(samples / self._unit)
        if not is_finite(vector, CONTRIBUTION_LIMIT):
            raise NonFiniteError(f"the sum of the gradients of {samples} samples is not finite")
        self._clipped = self.replica.clip_own(vector)

    def _to_sum(self, vector: torch.Tensor, samples: int) -> None:
        """Undo `_to_mean`."""
        vector[: self.replica.vector.parameters_numel].div_(self._clipped)
        vector.mul_(samples / self._unit)
