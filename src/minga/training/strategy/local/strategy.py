"""The strategy "local": inner steps on each peer, an outer step by the mean of their movements."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch

from minga.averaging.codecs.dense import CONTRIBUTION_LIMIT, is_finite
from minga.averaging.strategy_choice import StrategyFacts
from minga.core.errors import NonFiniteError
from minga.core.spec.fields import Section
from minga.training.replica.interface import ReplicaInterface
from minga.training.strategy.interface import ContributionFate, Recovery, Strategy
from minga.training.strategy.local.fragments import Fragments
from minga.training.strategy.local.guess import Guess
from minga.training.strategy.local.inner import InnerSteps
from minga.training.strategy.local.merge import MERGES
from minga.training.strategy.local.outer import OuterOptimizer
from minga.training.strategy.local.settings import LocalSettings

ANCHOR, MOMENTUM = "strategy/anchor", "strategy/momentum"
_OPTIMIZER = "optimizer/"
KEPT_ATTEMPTS = 2
"""Contributions of rounds that came to nothing that are kept: a later round of the step may adopt such a result."""


@dataclass(frozen=True)
class _Sealed:
    """A contribution: Δ of a fragment with the movements of averaged buffers, and what it counts by.

    `samples` are those that closed the round, `window` those since the fragment's last contribution that counted, in
    so many inner `steps`.
    """

    delta: torch.Tensor
    samples: int
    window: int
    steps: int
    weight: int


class Local(Strategy):
    """See the package. Θ and V are flat float32 vectors as long as the averaged one, of which they use the parameters;
    θ is in the replica. All of it but the contribution is the training thread's.
    """

    Settings = LocalSettings
    most_windows = 4

    def __init__(self, condition: threading.Condition, *, unit: int, settings: Section | None = None) -> None:
        super().__init__(condition, unit=unit, settings=settings)
        own = self._own = cast("LocalSettings", self.settings)
        self._outer = OuterOptimizer(own.outer_learning_rate, own.outer_momentum, own.nesterov)
        self._merge = MERGES[own.merge]
        self._guess = Guess() if own.merge == "eager" else None
        self._windows, self._steps = [0] * own.fragments, [0] * own.fragments
        self._sealed: _Sealed | None = None
        self._is_asked = False
        self._earlier: list[_Sealed | None] = []  # of rounds of this step that came to nothing, the last ones
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

    # ---- inner steps

    def micro_batch(self, samples: int) -> bool:
        """Take an inner step, or add the gradients to those of the next one."""
        self._settle()
        try:
            steps = self._inner.take_up(samples)
        except BaseException:  # half of them may have been added to those that wait
            dropped = self._inner.drop()
            self._windows = [window - dropped for window in self._windows]
            self._count_anew(self._samples - dropped)
            raise
        if steps is not None:
            self._steps = [each + steps for each in self._steps]
            self._late_steps += steps
        return steps is not None

    def _settle(self) -> None:
        """On the training thread: do to θ what was left to it."""
        self._heal()
        if self._guess is None:
            return
        if self._sealed is None and self._guess.jump is not None:
            self.replica.write_values(self._position())
            self._guess.jump = None
        elif self._sealed is not None and self._guess.jump is None:
            jump = self._guess.aim(self._sealed.delta, self._share(self._sealed), self._outer_movement)
            if jump is not None:
                self.replica.write_values(self._position().add_(jump))
                self._guess.jump = jump

    def _heal(self) -> None:
        """On the training thread: what is no number any more goes back to Θ, with fresh moments."""
        if self._is_broken:
            self.replica.restore(self.replica.capture())
            self._is_broken = False
            if self._guess is not None:
                self._guess.jump = None

    def _position(self) -> torch.Tensor:
        """Where the inner steps led, without a jump; with the movements of averaged buffers at the end."""
        found = self.replica.read_values()
        if self._guess is not None and self._guess.jump is not None:
            found[self._parameters].sub_(self._guess.jump[self._parameters])
        return found

    def _outer_movement(self, mean: torch.Tensor) -> torch.Tensor:
        return self._outer.movement(self._momentum, mean)

    def _share(self, sealed: _Sealed) -> float:
        """What part of the mean is this peer's, as far as it knows."""
        return min(1.0, sealed.weight / self._unit)

    # ---- rounds

    def contribution(self) -> tuple[torch.Tensor | None, int]:
        """Δ = Θ - θ of the fragment whose turn it is; see `Strategy`."""
        self._is_asked = True
        if self._sealed is None:
            self._seal()
        return (None, 0) if self._sealed is None else (self._sealed.delta, self._sealed.weight)

    def _seal(self) -> None:
        if self._earlier and self._earlier[-1] is not None and not self._late_steps:
            with self._condition:
                self._sealed = self._earlier[-1]
            return
        fragment = self._fragments.of(self.replica.step)
        window, steps = self._windows[fragment] - self._inner.pending, self._steps[fragment]
        if self._samples <= 0 or window <= 0 or self._is_broken:
            return
        delta = self._position()
        parameters = delta[self._parameters]
        parameters.neg_().add_(self.replica.rounded(self._anchor)[self._parameters])
        delta = self._fragments.take(delta, fragment)
        if not is_finite(delta, CONTRIBUTION_LIMIT):
            samples = self._samples
            self._forget_work()
            self._is_broken = True
            raise NonFiniteError(f"the parameters after inner steps over {samples} samples are not finite")
        weight = window if self._own.weight == "samples" else max(1, round(window / max(1, steps)))
        with self._condition:
            self._sealed = _Sealed(delta, self._samples, window, steps, weight)
        self._late_steps = 0

    def take_back(self) -> None:
        """See `Strategy`: θ was never changed, so nothing but the contribution is forgotten."""
        if self._is_asked:
            self._earlier = [*self._earlier[1 - KEPT_ATTEMPTS :], self._sealed]
        self._is_asked = False
        with self._condition:
            self._sealed = None

    def counted_earlier(self, attempts: int) -> None:
        """What moved since that contribution was made goes on counting."""
        if attempts <= len(self._earlier):
            with self._condition:
                self._sealed = self._earlier[-attempts]
            self._late_steps += 1

    def absorb(self, round: int, mean: torch.Tensor, fate: ContributionFate) -> None:
        """Take the outer step, and bring θ along; see `Strategy`."""
        self._heal()
        fragment = self._fragments.of(round - 1)
        sealed = self._sealed if fate is ContributionFate.COUNTED else None
        moved_on = sealed is None or self._late_steps > 0 or self._own.fragments > 1
        own = self._position() if moved_on else None
        if own is not None:
            before = self.replica.rounded(self._anchor)
            for run, part in self._fragments.slices(fragment):
                self._merge.depart(own[run], before[run], None if sealed is None else sealed.delta[part])
        for run, part in self._fragments.slices(fragment):
            momentum = None if self._momentum is None else self._momentum[run]
            self._outer.step(self._anchor[run], momentum, mean[part])
        self._adopt(round, mean)
        if own is not None:
            for run, _ in self._fragments.slices(fragment):
                self._merge.arrive(own[run], self._anchor[run], self._own.alpha)
            self.replica.write_values(own)
        if self._guess is not None:
            self._guess.note(
                mean, None if sealed is None else sealed.delta, 0.0 if sealed is None else self._share(sealed)
            )
            self._guess.jump = None
        self._settle_counts(fragment, sealed, fate)

    def _adopt(self, round: int, mean: torch.Tensor) -> None:
        """Bring the replica to Θ at `round`, with the mean movements of buffers, by the rules of the model."""
        tail = self._fragments.tail
        self._anchor[tail] = self._fragments.buffers(mean)
        adopted = self.replica.adopt(self._anchor, round)
        if adopted is not self._anchor:
            self._anchor[self._parameters] = adopted[self._parameters]
        self._anchor[tail].zero_()

    def _settle_counts(self, fragment: int, sealed: _Sealed | None, fate: ContributionFate) -> None:
        """What counted counts no more; what did not, and what came later, does."""
        gone = sealed
        if fate is ContributionFate.UNCOUNTED and not self.facts.keeps_uncounted:
            gone = self._sealed
        self._earlier, self._is_asked = [], False
        with self._condition:
            self._sealed = None
            if gone is not None:
                self._samples -= gone.samples
                self._windows[fragment] -= gone.window
                self._steps[fragment] -= gone.steps

    def missed(self, rounds: int) -> Recovery:
        """Go on with what this peer moved, unless it is too old."""
        return Recovery.REBASE if rounds <= self._own.max_age * self._own.fragments else Recovery.FETCH

    def conclude(self) -> None:
        """The model of the run is Θ."""
        self.replica.write_values(self._anchor)

    # ---- state

    def shared_tensors(self) -> Mapping[str, torch.Tensor]:
        """Θ as the model, V, and Θ itself where the model has fewer bits."""
        here = {name: each for name, each in self.replica.tensors().items() if not name.startswith(_OPTIMIZER)}
        found = {**here, **self.replica.named(self._anchor)}
        if self.replica.rounded(self._anchor) is not self._anchor:
            found[ANCHOR] = self._anchor
        if self._momentum is not None:
            found[MOMENTUM] = self._momentum
        return found

    def local_tensors(self) -> Mapping[str, torch.Tensor]:
        """θ, the moments of the optimizer, the counts, and what waits."""
        found = {name: each for name, each in self.replica.tensors().items() if name.startswith(_OPTIMIZER)}
        found["parameters"] = self._position()
        counts = (self.replica.step, self._samples, self._inner.pending, *self._windows, *self._steps)
        found["counts"] = torch.tensor(counts)
        if self._inner.gradients is not None:
            found["gradients"] = self._inner.gradients
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
            self.replica.put({name: each for name, each in local.items() if name.startswith(_OPTIMIZER)})
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
            self._inner.gradients.copy_(local["gradients"])
        if self._guess is not None:
            self._guess.of_others = local["guess"].clone()
        self._count_anew(samples)
