"""The settings of the strategy "local", and the facts that follow from them."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from minga.averaging.strategy_choice import StrategyFacts
from minga.core.spec.fields import Real, Section, choice, described, real, whole
from minga.core.spec.sections import MAX_BATCH

MAX_FRAGMENTS = 24
LEAST_STEPS, MUCH_MOMENTUM = 30, 0.5
"""With more momentum the outer step wants the movement of at least so many inner steps."""


class LocalSettings(Section):
    """How far peers go alone, and how the shared parameters step by the mean of what they did."""

    outer_learning_rate: Real = real(
        0.7, 0.0, 10.0, "rate of the step that the shared parameters take by each mean", above_low=True
    )
    outer_momentum: Real = real(
        0.9, 0.0, 1.0, "momentum of that step; it wants rounds of at least 30 inner steps", below_high=True
    )
    nesterov: bool = described(True, "look ahead by the momentum, as Nesterov does", "true or false")
    fragments: int = whole(
        1,
        1,
        MAX_FRAGMENTS,
        "parts of the model that rounds carry in turn, each after as great a part of the target batch",
    )
    overlap: bool = described(False, "go on computing while a round is under way", "true or false")
    merge: Literal["rebase", "mix", "overwrite", "eager"] = choice(
        "rebase",
        "what becomes of what a peer moved while a round was under way: it is kept, kept in part, lost, or kept with a "
        "jump ahead of the mean",
        "rebase",
        "mix",
        "overwrite",
        "eager",
    )
    alpha: Real = real(0.5, 0.0, 1.0, "(mix) share of a peer's own parameters")
    weight: Literal["samples", "batch"] = choice(
        "samples",
        "what a peer counts by in the mean: its samples, or the samples of its inner steps",
        "samples",
        "batch",
    )
    local_batch: int = whole(
        0, 0, MAX_BATCH, "samples of an inner step", special="; 0 is a micro-batch, whatever it has"
    )
    max_age: int = whole(
        10, 0, 1_000_000, "missed rounds of each fragment after which a peer drops what it moved, and begins anew"
    )

    @model_validator(mode="after")
    def _check_merge(self) -> LocalSettings:
        if self.merge == "overwrite" and self.overlap:
            raise ValueError('merge = "overwrite" drops what peers do while a round is under way: set overlap = false')
        if self.merge == "eager" and not self.overlap:
            raise ValueError('merge = "eager" jumps ahead of a round that is under way: set overlap = true')
        if self.merge == "eager" and self.fragments > 1:
            raise ValueError('merge = "eager" guesses the mean of the whole model: set fragments = 1')
        return self

    def facts(self) -> StrategyFacts:
        """What follows for planners, displays and simulations."""
        is_dropped = self.merge == "overwrite"
        return StrategyFacts(
            max_in_flight=int(self.overlap),
            keeps_late_micro_batches=not is_dropped,
            vectors=self._vectors(),
            payload="pseudo-gradient",
            keeps_uncounted=not is_dropped,
            fragments=self.fragments,
            least_micro_batches=LEAST_STEPS if self.outer_momentum > MUCH_MOMENTUM else 0,
        )

    def _vectors(self) -> int:
        """Θ, V, the contribution, and the parameters as they are read where they have moved on since it was made."""
        moves_on = self.overlap or self.fragments > 1
        eager = 2 if self.merge == "eager" else 0
        return 2 + (self.outer_momentum > 0.0) + moves_on + (self.local_batch > 0) + eager
