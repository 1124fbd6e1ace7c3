"""What can be combined at a price: a warning, or a guarantee that is lost."""

from __future__ import annotations

from typing import Final

from minga.training.combinations.facts import RunFacts
from minga.training.combinations.refusals import SKETCH, UPLOAD
from minga.training.combinations.rule import Rule, setting


def _what_needs_residual(run: RunFacts) -> str:
    return setting(UPLOAD, run.upload.choice) if run.upload.needs_residual else setting(SKETCH, run.sketch.choice)


CAUTIONS: Final = (
    Rule(
        "W1",
        "error feedback of gradients, and an optimizer with second moments",
        lambda run: run.needs_residual and run.has_moments and run.strategy.payload == "gradient",
        lambda run: (
            f"{_what_needs_residual(run)} sends old gradients in lumps, which make the second moments of "
            f'optimizer.name = "{run.optimizer}" grow: lower optimizer.learning_rate, or take a strategy whose peers '
            "step on their own"
        ),
    ),
)
"""In the order of their codes."""
