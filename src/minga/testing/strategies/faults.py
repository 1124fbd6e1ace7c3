"""Checks of what a strategy does with nothing, with what is no number, and where it is interrupted."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch

from minga.averaging.codecs.residual import ContributionFate
from minga.core.errors import NonFiniteError
from minga.testing.strategies.trainer import Trainer, facts_for, sends_gradients
from minga.testing.violation import Violation, require
from minga.training.strategy.interface import Strategy


def check_nothing(kind: type[Strategy], **settings: Any) -> None:
    """Without samples there is no contribution, of weight 0; and the round may count or come to nothing."""
    trainer = Trainer(kind, settings)
    for _ in range(2):
        strategy = trainer.strategy
        strategy.close()
        require(strategy.contribution() == (None, 0), kind, "it contributed something without samples")
        strategy.take_back()
        trainer.absorb(trainer.mean(), ContributionFate.ABSENT)


def check_not_finite(kind: type[Strategy], **settings: Any) -> None:
    """A micro-batch that is not finite is refused, or later raises `NonFiniteError` once and is forgotten."""
    for value in (math.nan, math.inf, 1e38):
        trainer = Trainer(kind, settings)
        trainer.replica.look_closely()
        trainer.feed((value, 1))
        trainer.strategy.close()
        with contextlib.suppress(NonFiniteError):
            contributed = trainer.strategy.contribution()
            require(contributed == (None, 0), kind, f"gradients of {value} were contributed")
        require(trainer.strategy.samples == 0, kind, f"samples with gradients of {value} still count")
        trainer.feed((3.0, 1))
        vector, samples = trainer.seal()
        good = samples == 1 and bool(vector.isfinite().all())
        require(good, kind, f"after gradients of {value} it contributed {vector}")


def check_broken_sum(kind: type[Strategy], **settings: Any) -> None:
    """A sum of gradients that is not finite, each of which was, raises `NonFiniteError` and is forgotten."""
    facts = facts_for(kind, settings)
    if not sends_gradients(facts):
        return
    trainer = Trainer(kind, settings, unit=1)
    trainer.feed((1e28, 1 << 36), (1e28, 1 << 36))
    trainer.strategy.close()
    try:
        trainer.strategy.contribution()
    except NonFiniteError:
        require(trainer.strategy.samples == 0, kind, "samples of a sum that is not finite still count")
    else:
        raise Violation(f"{kind.__name__}: a sum that is not finite was contributed")
    trainer.feed((3.0, 1))
    trainer.strategy.close()
    trainer.contributes(3.0, 1, "after a sum that was not finite")


def check_interrupted(kind: type[Strategy], **settings: Any) -> None:
    """A micro-batch that fails half-way leaves nothing behind in the open sum."""
    facts = facts_for(kind, settings)
    if not sends_gradients(facts):
        return
    trainer = Trainer(kind, settings)
    accumulate = trainer.replica.accumulate

    def broken(vector: torch.Tensor, weight: float) -> bool:
        vector[0] = weight
        raise KeyboardInterrupt

    trainer.replica.accumulate = broken  # type: ignore[method-assign]
    try:
        trainer.strategy.micro_batch(1)
    except KeyboardInterrupt:
        trainer.replica.accumulate = accumulate  # type: ignore[method-assign]
    else:
        raise Violation(f"{kind.__name__}: an interrupt was swallowed")
    trainer.feed((3.0, 1))
    trainer.strategy.close()
    trainer.contributes(3.0, 1, "after an interrupt")
