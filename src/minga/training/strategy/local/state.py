"""What a peer has with the strategy "local": what all share of it, what is its own, and what it counts by."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch

from minga.averaging.strategy_choice import StrategyFacts
from minga.core.spec.fields import Section
from minga.training.replica.interface import ReplicaInterface
from minga.training.strategy.interface import Strategy
from minga.training.strategy.local.fragments import Fragments
from minga.training.strategy.local.guess import Guess
from minga.training.strategy.local.inner import InnerSteps
from minga.training.strategy.local.settings import LocalSettings
from minga.training.strategy.own_parameters import own_moments, shared_model

ANCHOR, MOMENTUM = "strategy/anchor", "strategy/momentum"


@dataclass(frozen=True)
class Sealed:
    """A contribution: Δ of a fragment with the movements of averaged buffers, and what it counts by.

    `samples` are those that closed the round, `window` those since the fragment's last contribution that counted, in
    so many inner `steps`.
    """

    delta: torch.Tensor
    samples: int
    window: int
    steps: int
    weight: int


class LocalState(Strategy):
    """The state of `Local`. Θ and V are flat float32 vectors as long as the averaged one, of which they use the
    parameters; θ is in the replica. All of it but the contribution is the training thread's.
    """

    Settings = LocalSettings
    most_windows = 4

    def __init__(self, condition: threading.Condition, *, unit: int, settings: Section | None = None) -> None:
        super().__init__(condition, unit=unit, settings=settings)
        own = self._own = cast("LocalSettings", self.settings)
        self._guess = Guess() if own.merge == "eager" else None
        self._windows, self._steps = [0] * own.fragments, [0] * own.fragments
        self._sealed: Sealed | None = None
        self._is_asked = False
        self._earlier: list[Sealed | None] = []  # of rounds of this step that came to nothing, the last ones
        self._late_steps = 0  # inner steps since the contribution was made
        self._is_broken = False

    @classmethod
    def facts_for(cls, settings: Section) -> StrategyFacts:
        """See `LocalSettings`."""
        return cast("LocalSettings", settings).facts()

    def begin(self, replica: ReplicaInterface) -> None:
        """See `Strategy`: θ is Θ."""
        super().begin(replica)
        vector, own = replica.vector, self._own
        self._parameters = slice(0, vector.parameters_numel)
        self._anchor = replica.read_values()
        self._anchor[vector.parameters_numel :].zero_()
        self._names = list(replica.named(self._anchor))
        self._fragments = Fragments(vector.layout, vector.parameters_numel, self._names, own.fragments)
        self._momentum = vector.new() if own.outer_momentum else None
        self._inner = InnerSteps(replica, own.local_batch)
        if own.fragments > 1:
            replica.define_fragments(self._fragments.layouts, self._fragments.tensors)

    # ---- counts

    @property
    def complete_samples(self) -> int:
        """Those of the contribution; until it is made, all."""
        return self._samples if self._sealed is None else self._sealed.samples

    def count(self, samples: int) -> None:
        """See `Strategy`: each fragment's window has them."""
        super().count(samples)
        self._windows = [window + samples for window in self._windows]

    def _forget_work(self) -> None:
        """No movement of this peer counts any more."""
        self._windows, self._steps = [0] * self._own.fragments, [0] * self._own.fragments
        self._late_steps = 0
        self._inner.drop()
        with self._condition:
            self._sealed, self._samples, self._earlier = None, 0, []

    def _position(self) -> torch.Tensor:
        """Where the inner steps led, without a jump; with the movements of averaged buffers at the end."""
        found = self.replica.read_values()
        if self._guess is not None and self._guess.jump is not None:
            found[self._parameters].sub_(self._guess.jump[self._parameters])
        return found

    # ---- state

    def shared_tensors(self) -> Mapping[str, torch.Tensor]:
        """Θ as the model, V, and Θ itself where the model has fewer bits."""
        found = shared_model(self.replica, self._anchor, ANCHOR)
        if self._momentum is not None:
            found[MOMENTUM] = self._momentum
        return found

    def local_tensors(self) -> Mapping[str, torch.Tensor]:
        """θ, the moments of the optimizer, the counts, and what waits."""
        found = own_moments(self.replica.tensors())
        found["parameters"] = self._position()
        counts = (self.replica.step, self._samples, self._inner.pending, *self._windows, *self._steps)
        found["counts"] = torch.tensor(counts)
        if self._inner.gradients is not None:
            found["gradients"] = self._inner.gradients.vector()
        if self._guess is not None:
            known = self._guess.of_others
            found["guess"] = torch.zeros_like(self._anchor) if known is None else known
        return found

    def restored(
        self,
        shared: Mapping[str, torch.Tensor],
        round: int,
        local: Mapping[str, torch.Tensor] | None,
    ) -> None:
        """Take over Θ and V, and θ from what is kept; see `Strategy`."""
        before, after = self._anchor, self._anchor_in(shared)
        if self._momentum is not None and MOMENTUM in shared:
            self._momentum.copy_(shared[MOMENTUM])
        self._forget_work()
        self._is_broken = False
        if self._guess is not None:
            self._guess = Guess()
        if local is None:
            self.replica.write_values(after)
        else:
            own = local["parameters"]
            is_same = int(local["counts"][0]) == round  # else it is of this process, where Θ was `before`
            self.replica.write_values(own if is_same else after + (own - self.replica.rounded(before)))
            self.replica.put(own_moments(local))
            self._take_up(local)
        self._anchor = after

    def _anchor_in(self, shared: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Θ of a shared state."""
        found = self._anchor.clone()
        if ANCHOR in shared:
            found.copy_(shared[ANCHOR])
        elif self._names:
            values = [shared[name].detach().reshape(-1).to("cpu", torch.float32) for name in self._names]
            found[self._parameters] = torch.cat(values)
        return found

    def _take_up(self, local: Mapping[str, torch.Tensor]) -> None:
        _, samples, pending, *rest = (max(0, int(each)) for each in local["counts"])
        self._windows, self._steps = rest[: self._own.fragments], rest[self._own.fragments :]
        self._inner.pending = pending
        if self._inner.gradients is not None:
            self._inner.gradients.fill(local["gradients"])
        if self._guess is not None:
            self._guess.of_others = local["guess"].clone()
        self._count_anew(samples)
