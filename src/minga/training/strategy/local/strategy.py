"""The strategy "local": inner steps on each peer, an outer step by the mean of their movements."""

from __future__ import annotations

import threading

import torch

from minga.averaging.codecs.dense import CONTRIBUTION_LIMIT, is_finite
from minga.core.errors import NonFiniteError
from minga.core.spec.fields import Section
from minga.training.strategy.interface import ContributionFate, Recovery
from minga.training.strategy.local.merge import MERGES
from minga.training.strategy.local.outer import OuterOptimizer
from minga.training.strategy.local.state import LocalState, Sealed

KEPT_ATTEMPTS = 2
"""Contributions of rounds that came to nothing that are kept: a later round of the step may adopt such a result."""


class Local(LocalState):
    """See the package."""

    def __init__(self, condition: threading.Condition, *, unit: int, settings: Section | None = None) -> None:
        super().__init__(condition, unit=unit, settings=settings)
        own = self._own
        self._outer = OuterOptimizer(own.outer_learning_rate, own.outer_momentum, own.nesterov)
        self._merge = MERGES[own.merge]

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

    def _outer_movement(self, mean: torch.Tensor) -> torch.Tensor:
        return self._outer.movement(self._momentum, mean)

    def _share(self, sealed: Sealed) -> float:
        """What part of the mean is this peer's, as far as it knows: the part of the target batch that it computed."""
        return min(1.0, sealed.window / self._unit)

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
            self._sealed = Sealed(delta, self._samples, window, steps, weight)
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

    def _settle_counts(self, fragment: int, sealed: Sealed | None, fate: ContributionFate) -> None:
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
