"""The elastic strategy: peers explore on springs that hold them to a common centre."""

from __future__ import annotations

from typing import cast

import torch

from minga.averaging.strategy_choice import StrategyFacts
from minga.core.spec.fields import Real, Section, real
from minga.training.strategy.centred import Centred


class ElasticSettings(Section):
    """How strong the springs are."""

    beta: Real = real(0.43, 0.0, 1.0, "share of the way to the mean of the peers that the centre moves in a round")
    alpha: Real | None = real(
        None, 0.0, 1.0, "share of the way to the centre that a peer moves in a round; left out: beta / peers"
    )


class Elastic(Centred):
    """Elastic averaging SGD in rounds (Zhang, Choromanska and LeCun, "Deep learning with elastic averaging SGD", 2015,
    section 3). With N contributions x_i - c:

        c <- c + beta * mean(x_i - c)        x_i <- x_i - alpha * (x_i - c before)        alpha = beta / N

    Whatever samples a peer has, it pulls as strongly as any other.
    """

    Settings = ElasticSettings
    facts = StrategyFacts(
        max_in_flight=0, keeps_late_micro_batches=False, vectors=3, payload="pseudo-gradient", weights="equal"
    )

    def _move(self, mean: torch.Tensor) -> None:
        size, beta = self.replica.vector.parameters_numel, cast(ElasticSettings, self.settings).beta
        self._centre[:size].add_(mean[:size], alpha=beta)
        self._centre[size:].add_(mean[size:])

    def _departing(self, own: torch.Tensor) -> torch.Tensor:
        settings = cast(ElasticSettings, self.settings)
        alpha = settings.beta / self._contributors if settings.alpha is None else settings.alpha
        return self._draw(own, self.replica.rounded(self._centre), alpha)

    def _rebased(self, own: torch.Tensor) -> torch.Tensor:
        """The spring is longer, and pulls in the next round."""
        return own
