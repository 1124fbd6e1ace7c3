"""Strategies whose peers train parameters of their own, drawn to a *centre* that all share.

    micro_batch: an optimizer step of this peer alone
    a round:     each contributes how far it is from the centre ──▶ the mean moves the centre, and the centre draws the
                 peers

The centre is what peers compare, serve and keep in checkpoints. A peer's own parameters and the moments of its
optimizer are its own affair: a newcomer begins at the centre without them.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Mapping
from typing import Final, cast

import torch

from minga.averaging.codecs.interface import CONTRIBUTION_LIMIT, is_finite
from minga.averaging.codecs.residual import ContributionFate
from minga.averaging.strategy_choice import StrategyFacts
from minga.core.errors import NonFiniteError
from minga.core.spec.fields import Real, Section, real
from minga.optim.arithmetic import rounded
from minga.optim.pieces import CPU_PIECE
from minga.training.replica.interface import ReplicaInterface
from minga.training.strategy.interface import Recovery, Strategy

# ---- Parameters of a peer's own, beside those that all share.
#
# Other strategies whose peers train such parameters use this section, too. The shared parameters are a flat vector
# (float32, on the CPU, as `ReplicaInterface.read_values` makes it). The model in the replica, and what its optimizer
# keeps, are the peer's own.


_OPTIMIZER: Final = "optimizer/"


def shared_model(replica: ReplicaInterface, parameters: torch.Tensor, name: str) -> dict[str, torch.Tensor]:
    """The model with the shared `parameters` in place of the peer's own, by its names in checkpoints; and these as they
    are, as `name`, where the model has fewer bits.
    """
    model = {each: tensor for each, tensor in replica.tensors().items() if not each.startswith(_OPTIMIZER)}
    found = {**model, **replica.named(parameters)}
    if replica.rounded(parameters) is not parameters:
        found[name] = parameters
    return found


def own_moments(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Of some tensors of a replica, those that its optimizer keeps."""
    return {name: tensor for name, tensor in tensors.items() if name.startswith(_OPTIMIZER)}


# ---- A centre that all peers share: the base of the strategies "elastic" and "leader".


_CENTRE: Final = "strategy/centre"
_OWN: Final = "own/parameters"
_ROUND: Final = "own/round"
_SAMPLES: Final = "own/samples"


class Centred(Strategy):
    """What `Elastic` and `Leader` share; they say how the centre moves, and how it draws a peer.

    It holds three vectors: the centre, the contribution while a round runs, and when that ends the own parameters.
    """

    def __init__(self, condition: threading.Condition, *, unit: int, settings: Section | None = None) -> None:
        super().__init__(condition, unit=unit, settings=settings)
        self._sealed: torch.Tensor | None = None
        self._is_apart = False  # it has parameters of its own
        self._is_lost = False  # they are not finite

    def begin(self, replica: ReplicaInterface) -> None:
        """See `Strategy`."""
        self._centre = self._without_buffers(replica.read_values(), replica)
        super().begin(replica)

    def micro_batch(self, samples: int) -> bool:  # noqa: ARG002
        """Take an optimizer step; see `Strategy`. Parameters that were lost give way to the centre instead."""
        if self._is_lost:
            self._begin_at_centre()
            return False
        taken = self.replica.inner_step()
        self._is_apart = self._is_apart or taken
        return taken

    def contribution(self) -> tuple[torch.Tensor | None, int]:
        """How far this peer is from the centre; see `Strategy`."""
        if not self.samples:
            return None, 0
        if self._sealed is None:
            distance = self.replica.read_values().sub_(self.replica.rounded(self._centre))
            if not is_finite(distance, CONTRIBUTION_LIMIT):
                self._is_lost = True
                self._count_anew()
                raise NonFiniteError("this peer's parameters are not finite: it begins again at those of all")
            self._sealed = distance
        return self._sealed, self.samples

    def take_back(self) -> None:
        """See `Strategy`."""
        self._sealed = None

    def absorb(self, round: int, mean: torch.Tensor, fate: ContributionFate) -> None:  # noqa: ARG002
        """Move the centre, whatever became of the own contribution, and let it draw this peer."""
        self._sealed = None
        own = self._departing(self.replica.read_values())
        self._move(mean)
        self._centre = self._without_buffers(self.replica.adopt(self._centre, round), self.replica)
        if self._is_lost:
            self._begin_at_centre()
        else:
            self.replica.write_values(self._arriving(own))
        self._count_anew()

    def conclude(self) -> None:
        """The model of the run is the one at the centre."""
        super().conclude()
        self.replica.write_values(self._centre)

    @abstractmethod
    def _move(self, mean: torch.Tensor) -> None:
        """Move the centre by a round with this mean, in place; averaged buffers, at its end, by their whole mean."""

    def _departing(self, own: torch.Tensor) -> torch.Tensor:
        """A peer's `own` parameters, which may be changed, as the centre draws them before it moves."""
        return own

    def _arriving(self, own: torch.Tensor) -> torch.Tensor:
        """The same as the centre draws them after it moved."""
        return own

    @abstractmethod
    def _rebased(self, own: torch.Tensor) -> torch.Tensor:
        """Where the centre leaves a peer that missed rounds, with its `own` parameters, which may be changed."""

    def _draw(self, values: torch.Tensor, target: torch.Tensor, share: float) -> torch.Tensor:
        """Move parameters by a share of their way to others, in place; equal ones stay as they are."""
        size = self.replica.vector.parameters_numel
        values[:size].lerp_(target[:size], share)
        return values

    @staticmethod
    def _without_buffers(values: torch.Tensor, replica: ReplicaInterface) -> torch.Tensor:
        """Parameters alone, in the same memory: averaged buffers move by means, and have no centre."""
        values[replica.vector.parameters_numel :].zero_()
        return values

    def _begin_at_centre(self) -> None:
        """Go on from the centre with fresh moments, as a newcomer does."""
        self._is_apart = self._is_lost = False
        self.replica.restore(self.replica.capture())

    # ---- state

    def shared_tensors(self) -> Mapping[str, torch.Tensor]:
        """The model at the centre, and the centre itself where the model has fewer bits."""
        return shared_model(self.replica, self._centre, _CENTRE)

    def local_tensors(self) -> Mapping[str, torch.Tensor]:
        """The own parameters, the moments of the optimizer, and what is counted."""
        counted = {_ROUND: self.replica.step, _SAMPLES: self.samples}
        counts = {name: torch.tensor(each, device="cpu") for name, each in counted.items()}
        return self.replica.moments() | counts | {_OWN: self.replica.read_values()}

    def restored(
        self,
        shared: Mapping[str, torch.Tensor],
        round: int,
        local: Mapping[str, torch.Tensor] | None,
    ) -> None:
        """Go on at the centre, or where the centre of now leaves the own parameters of earlier."""
        kept = shared.get(_CENTRE)
        found = self.replica.read_values() if kept is None else kept.detach().clone()
        self._centre, self._sealed = self._without_buffers(found, self.replica), None
        self._is_apart, self._is_lost = local is not None, False
        if local is not None:
            own = local[_OWN].clone()
            moved = own[self.replica.vector.parameters_numel :].clone()
            self.replica.write_values(own if int(local[_ROUND]) == round else self._rebased(own))
            self.replica.move_buffers(moved)
            self.replica.put(own_moments(local))
        self._count_anew(0 if local is None else int(local[_SAMPLES]))

    def missed(self, rounds: int) -> Recovery:  # noqa: ARG002
        """It keeps parameters of its own; a peer that has none yet begins at the centre."""
        return Recovery.REBASE if self._is_apart else Recovery.FETCH


# ---- The elastic strategy: peers explore on springs that hold them to a common centre.


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

    The distance to the centre is there again in the next round. So it is a payload as parameters are: a residual would
    add up the same distance round after round, and throw the centre far beyond the peers.
    """

    Settings = ElasticSettings
    facts = StrategyFacts(
        max_in_flight=0, keeps_late_micro_batches=False, vectors=3, payload="parameters", weights="equal"
    )

    def _move(self, mean: torch.Tensor) -> None:
        size = self.replica.vector.parameters_numel
        beta = rounded(cast(ElasticSettings, self.settings).beta, torch.float32)
        for start in range(0, size, CPU_PIECE):
            piece = slice(start, min(start + CPU_PIECE, size))
            self._centre[piece].add_(mean[piece].mul(beta))  # two operations: equal bits on every processor
        self._centre[size:].add_(mean[size:])

    def _departing(self, own: torch.Tensor) -> torch.Tensor:
        settings = cast(ElasticSettings, self.settings)
        alpha = settings.beta / self.contributors if settings.alpha is None else settings.alpha
        return self._draw(own, self.replica.rounded(self._centre), alpha)

    def _rebased(self, own: torch.Tensor) -> torch.Tensor:
        """The spring is longer, and pulls in the next round."""
        return own
