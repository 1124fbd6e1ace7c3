"""How far a single step may go, whichever peer made its aggregate.

CenteredClip bounds what a hostile minority of those who contribute can do. But validators contribute nothing, and who
validates is drawn: with 7 hostile members of 16 and two validators, in a step of every three half of the contributors
are hostile, and then the aggregate is what they like. The members who apply it have seen how long those of the last
steps were: one that is many times longer is shortened. Honest gradients that do get longer soon move the median. What
has no length (everybody's loss was not finite) says nothing about the next, and is not remembered: else a limit of 0
would hold for ever.

All members remember the same steps and round lengths alike, so all shorten alike. What is rounded is on the safe side:
what is remembered is rounded down, and what must stay below the limit is rounded up.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable
from typing import Final

import torch

from minga.security.verification.rounded_length import LENGTH_STEP, rounded_length

STEP_GROWTH: Final = 4.0
REMEMBERED_STEPS: Final = 32


class StepBound:
    """Limits aggregates to `STEP_GROWTH` times the median length of those that were applied last."""

    def __init__(self, lengths: Iterable[float] = ()) -> None:
        self._lengths = deque(lengths, maxlen=REMEMBERED_STEPS)

    @property
    def lengths(self) -> tuple[float, ...]:
        """Of the aggregates that were applied last."""
        return tuple(self._lengths)

    def shortened(self, aggregate: torch.Tensor, about: float | None = None) -> torch.Tensor:
        """What is applied of an aggregate (float32), and remembered; nothing limits the first one. About how large the
        sum of its squares is (`rounded_length.squares`) may be known already.
        """
        least = rounded_length(aggregate, about)
        most = least * (1.0 + LENGTH_STEP)
        limit = STEP_GROWTH * statistics.median(self._lengths) if self._lengths else most
        if least > 0.0:
            self._lengths.append(min(least, limit))
        return aggregate if most <= limit else aggregate * (limit / most)
