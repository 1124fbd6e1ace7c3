"""One peer's sketch at work: what its rounds average, and what of its contributions the sketch has left out so far.

What is left out is counted as mass, values times samples, as in `residual.py`:

    vector g of n samples, residual e ──▶ u = g + e / n ──▶ project ──▶ the round ──▶ e = n (u - expand(project(u)))

A round may count without this peer's contribution, as one does that adopts an earlier result: then e = n u. The
residual changes when the mean of the round is absorbed, not before: a round that came to nothing leaves it as it was.
It takes as much memory as the vector does, and as much again while a round runs.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import torch

from minga.averaging.codecs.interface import CONTRIBUTION_LIMIT, is_finite
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.residual import MOST_ROUNDS_KEPT
from minga.averaging.codecs.sketch import Sketch

logger = logging.getLogger("minga.averaging")


class _Sealed(NamedTuple):
    """A contribution under way."""

    step: int
    weight: int
    whole: torch.Tensor
    values: torch.Tensor


class Projection:
    """The vectors that one peer's rounds average, by its sketch."""

    def __init__(self, sketch: Sketch) -> None:
        self.sketch = sketch
        self._mass: torch.Tensor | None = None
        self._step = 0  # of the round that the mass was last brought up to date in
        self._sealed: _Sealed | None = None

    @property
    def left_out(self) -> torch.Tensor:
        """The mass that was left out so far."""
        return torch.zeros(self.sketch.whole.total) if self._mass is None else self._mass.clone()

    def layout_of(self, step: int) -> VectorLayout:
        """The layout of what the round of `step` averages. Any thread may ask."""
        return self.sketch.layout(step)

    def contribution(self, vector: torch.Tensor | None, weight: int, step: int) -> torch.Tensor | None:
        """What this peer gives to the round of `step`, for its mean `vector` over `weight` samples; None for none.

        `vector` is not to be changed before `absorb`, if the round counts.
        A contribution that cannot be sent is left out of the step, with a warning, and so is the residual then.
        """
        if self.sketch.is_identity:
            return vector
        self._sealed = None
        if vector is None:
            return None
        if self._mass is not None and not 0 <= step - self._step <= MOST_ROUNDS_KEPT:
            self._mass = None
        whole = vector if self._mass is None else torch.add(vector, self._mass, alpha=1.0 / weight)
        values = self.sketch.project(whole, step)
        if not is_finite(values, CONTRIBUTION_LIMIT):
            logger.warning("left out of step: the sketch of the gradients of %d samples is not finite", weight)
            self._mass = None
            return None
        self._sealed = _Sealed(step, weight, whole, values)
        return values

    def absorb(self, mean: torch.Tensor, step: int, *, counted: bool) -> torch.Tensor:
        """The vector that the mean of the round of `step` stands for. For each round that counts, in its order.

        `counted` tells whether the mean has this peer's contribution in it. If not, all of that was left out.
        """
        if self.sketch.is_identity:
            return mean
        vector, sealed, self._sealed = self.sketch.expand(mean, step), self._sealed, None
        if sealed is not None and sealed.step == step:
            whole = sealed.whole
            rest = torch.sub(whole, self.sketch.expand(sealed.values, step)) if counted else whole.clone()
            self._mass = rest.mul_(sealed.weight)
            self._step = step
        self.sketch.absorb(mean, step)
        return vector
