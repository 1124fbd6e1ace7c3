"""A sanity check on samples that nobody trains on: does what comes back from the server make the model better?

Gradients of a server that lies, or of one that leads the clients' part to where it can compute the inputs, cost the
model what it has learnt, or keep it from learning. A client with samples of its own sees that in their loss. A server
that is honest about these samples and lies about others, or that only listens, is not found.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import torch

from minga.core.errors import ConfigurationError

SHARE: Final = 0.5
"""The loss is suspicious if it has risen by so much of what guessing has more than the best look so far."""
LOOKS_IN_A_ROW: Final = 3
LOOKS_TO_LEARN: Final = 20
"""After so many looks a model should be better than guessing."""
BETTER_THAN_GUESSING: Final = 0.98


@dataclass(frozen=True)
class HeldOutFinding:
    """What is suspicious about the held-out `loss` of a look."""

    loss: float
    why: str


class HeldOutRule:
    """What is suspicious about a course of held-out losses. `guessing` is the loss of who knows nothing but how often
    each label is there; None: it is taken to be that of the first look.

    Suspicious is a loss that at `LOOKS_IN_A_ROW` looks was far above the best, by `SHARE` of the distance from there to
    guessing, and of at least half of guessing; and a best loss that after `LOOKS_TO_LEARN` looks is that of guessing.
    Each is said once, and again after a look that was good in between.
    """

    def __init__(self, guessing: float | None = None) -> None:
        self._guessing = guessing
        self._looks = self._bad_looks = 0
        self.best = math.inf
        """The lowest loss of all looks."""

    def take(self, loss: float) -> HeldOutFinding | None:
        """Take in the loss of a look, which may be NaN or infinite."""
        if self._guessing is None and math.isfinite(loss):
            self._guessing = loss
        guessing = math.inf if self._guessing is None else self._guessing
        self._looks += 1
        if math.isfinite(loss):
            self.best = min(self.best, loss)
        limit = self.best + SHARE * max(guessing - self.best, 0.5 * guessing)
        is_good = math.isfinite(loss) and (loss <= limit or math.isinf(guessing))
        self._bad_looks = 0 if is_good else self._bad_looks + 1
        if self._bad_looks == LOOKS_IN_A_ROW:
            return HeldOutFinding(
                loss,
                f"the loss on held-out samples is {loss:.4g}, it was {self.best:.4g} (guessing: {guessing:.4g}): the "
                "server may send wrong gradients, or the model is trained too fast or too long",
            )
        if self._looks == LOOKS_TO_LEARN and self.best > BETTER_THAN_GUESSING * guessing:
            return HeldOutFinding(
                loss,
                f"the loss on held-out samples is {loss:.4g} after {self._looks} looks, no better than guessing "
                f"({guessing:.4g}): the server may send wrong gradients, or the model cannot learn this",
            )
        return None


class HeldOutWatch:
    """Samples to look at after every so many batches. Raises `ConfigurationError` for ones that cannot be looked at."""

    def __init__(
        self, inputs: Any, labels: Any, every_batches: int, *, is_cross_entropy: bool, max_samples: int
    ) -> None:
        if every_batches < 1:
            raise ConfigurationError(f"every_batches = {every_batches}: it must be at least 1")
        if not isinstance(labels, torch.Tensor) or not 0 < len(labels) <= max_samples:
            raise ConfigurationError(
                f"held-out samples need labels in one tensor, of 1 to split.max_samples = {max_samples} samples"
            )
        self.inputs, self.labels = inputs, labels
        self._every_batches, self._batches = every_batches, 0
        self.rule = HeldOutRule(entropy_of(labels) if is_cross_entropy else None)

    def is_due(self) -> bool:
        """Call it after each batch."""
        self._batches += 1
        return self._batches % self._every_batches == 0


def entropy_of(labels: torch.Tensor) -> float | None:
    """The entropy of how often each class is there, in nats; None of labels that are no classes, or all alike."""
    if labels.is_floating_point():
        return None
    _, counts = torch.unique(labels.cpu(), return_counts=True)
    shares = counts.double() / counts.sum()
    entropy = float(-(shares * shares.log()).sum())
    return entropy if entropy > 0.0 else None
