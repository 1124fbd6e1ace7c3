"""The leader strategy: peers explore, and each round draws them to the best of them."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping
from typing import Final, cast

import torch

from minga.averaging.codecs.residual import ContributionFate
from minga.averaging.messages import MAX_SCORE, PeerScore
from minga.averaging.strategy_choice import StrategyFacts
from minga.core.errors import ConfigurationError
from minga.core.spec.fields import Real, Section, real, whole
from minga.training.strategy.centred import Centred

_LOSSES: Final = "own/losses"
_PACE: Final = "own/micro_batches"


class LeaderSettings(Section):
    """How strongly the best peer draws the others."""

    pull: Real = real(0.1, 0.0, 1.0, "share of the way to the best peer that the others move in a round")
    inner_pull: Real = real(0.1, 0.0, 1.0, "share of the way to the last best peer that the steps until the next move")
    score_micro_batches: int = whole(10, 1, 10_000, "micro-batches of which the mean loss is a peer's score")


class Leader(Centred):
    """Leader SGD in one group (Teng et al., "Leader stochastic gradient descent for distributed training of deep
    learning models", 2019, section 3). The round has one contribution, that of the peer with the least mean loss:

        inner step    x <- x - (inner_pull / tau) * (x - x_best)         tau: this peer's steps in the last round
        a round       x_best <- that peer's x,  x <- x - pull * (x - x_best)

    In the last round of a run all contribute by their samples: the run ends with their mean.
    """

    Settings = LeaderSettings
    facts = StrategyFacts(
        max_in_flight=0, keeps_late_micro_batches=False, vectors=3, payload="parameters", contributors="best"
    )

    def __init__(self, condition: threading.Condition, *, unit: int, settings: Section | None = None) -> None:
        super().__init__(condition, unit=unit, settings=settings)
        self._losses = deque[float](maxlen=self._options.score_micro_batches)
        self._loss = 0.0
        self._score: PeerScore | None = None
        self._pace = self._steps = 0

    @property
    def _options(self) -> LeaderSettings:
        return cast(LeaderSettings, self.settings)

    @property
    def score(self) -> PeerScore | None:
        """The mean of the last losses, which is early until there are enough of them; see `Strategy`."""
        return self._score if self.samples else None

    def note_loss(self, loss: float | torch.Tensor | None) -> None:
        """See `Strategy`."""
        if loss is None:
            raise ConfigurationError(
                'strategy "leader" finds the best peer by the loss: call optimizer.step(samples=..., loss=loss)'
            )
        self._loss = float(loss)

    def micro_batch(self, samples: int) -> bool:
        """Step, and move a little to the last best peer. A loss that is no number is as bad as such a gradient."""
        if not abs(self._loss) <= MAX_SCORE or not super().micro_batch(samples):
            return False
        if self._pace and self._options.inner_pull:
            own = self.replica.read_values()
            self.replica.write_values(self._draw(own, self._centre, min(1.0, self._options.inner_pull / self._pace)))
        self._steps += 1
        self._losses.append(self._loss)
        self._rate()
        return True

    def absorb(self, round: int, mean: torch.Tensor, fate: ContributionFate) -> None:
        """See `Centred`."""
        super().absorb(round, mean, fate)
        self._pace, self._steps = self._steps or self._pace, 0

    def _move(self, mean: torch.Tensor) -> None:
        self._centre.add_(mean)

    def _arriving(self, own: torch.Tensor) -> torch.Tensor:
        return self._draw(own, self._centre, self._options.pull)

    def _rebased(self, own: torch.Tensor) -> torch.Tensor:
        return self._draw(own, self._centre, self._options.pull)

    def _rate(self) -> None:
        losses, window = self._losses, self._losses.maxlen
        mean = math.fsum(losses) / len(losses) if losses else 0.0
        with self._condition:
            self._score = PeerScore(mean, early=len(losses) != window) if losses else None

    # ---- state

    def _begin_at_centre(self) -> None:
        super()._begin_at_centre()
        self._losses.clear()
        self._rate()

    def local_tensors(self) -> Mapping[str, torch.Tensor]:
        """See `Centred`; with the losses, of which those that are still to come are no numbers."""
        losses = torch.full((self._options.score_micro_batches,), math.nan, dtype=torch.float64, device="cpu")
        losses[: len(self._losses)] = torch.tensor(list(self._losses), dtype=torch.float64, device="cpu")
        pace = torch.tensor([self._pace, self._steps], dtype=torch.float32, device="cpu")
        return {**super().local_tensors(), _LOSSES: losses, _PACE: pace}

    def restored(
        self, shared: Mapping[str, torch.Tensor], round: int, local: Mapping[str, torch.Tensor] | None
    ) -> None:
        """See `Centred`."""
        super().restored(shared, round, local)
        self._losses.clear()
        if local is None:
            self._pace = self._steps = 0
        else:
            self._losses.extend(each for each in local[_LOSSES].tolist() if math.isfinite(each))
            self._pace, self._steps = (int(each) for each in local[_PACE])
        self._rate()
