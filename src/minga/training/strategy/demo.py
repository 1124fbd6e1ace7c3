"""The demo strategy: steps by the signs of what is left of momentum that peers keep to themselves."""

from __future__ import annotations

import torch

from minga.averaging.codecs.residual import ContributionFate
from minga.averaging.strategy_choice import StrategyFacts
from minga.training.strategy.synchronous import Synchronous


class Demo(Synchronous):
    """Decoupled momentum (Peng, Quesnelle and Kingma, "DeMo: decoupled momentum optimization", 2024, section 3).

    Of the algorithm this is the end: all parameters move by the learning rate against the sign of the mean, and by
    weight decay. The rest of it are settings of the run. A sketch turns gradients into coefficients, a sparse codec
    sends the greatest of these, and what it leaves out, the residual, is the momentum, which decays.

    The optimizer has to be gradient descent without momentum, whose weight decay is decoupled as it is.
    """

    facts = StrategyFacts(max_in_flight=0, keeps_late_micro_batches=False, vectors=3, owns_optimizer=True)

    def absorb(self, round: int, mean: torch.Tensor, fate: ContributionFate) -> None:
        """Move by signs; averaged buffers move by their mean."""
        signs, size = mean.clone(), self.replica.vector.parameters_numel
        signs[:size].sign_()
        super().absorb(round, signs, fate)
