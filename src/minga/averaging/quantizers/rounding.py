"""Rounding to nearest, or at random so that the expected value is exact.

Rounding at random is rounding to nearest after noise has been added that is uniform in ±1/2 of a step. The noise comes
from the counter-based generator Philox, whose output is specified, so that a seed stands for the same bytes on every
machine. It has 16 bits, symmetric about 0: the expected value is exact to 2**-17 of a step, and what lies on a step
stays there.
"""

from __future__ import annotations

from typing import Final, Literal, Protocol

import numpy as np
import torch

from minga.core.spec.fields import choice

Rounding = Literal["nearest", "stochastic"]
DRAWS_PER_WORD: Final = 4


class Noise(Protocol):
    """Noise for one element after the other."""

    def __call__(self, numel: int) -> torch.Tensor:
        """The next `numel` values as int16; (k + 1/2) / 65536 is uniform in ±1/2."""
        ...


def rounding_setting() -> Rounding:
    """The declaration of a setting `rounding`."""
    meaning = "stochastic rounds at random: no bias, twice the squared error"
    declared: Rounding = choice("nearest", meaning, "nearest", "stochastic")
    return declared


def noise_of(seed: int) -> Noise:
    """The noise of a seed of 64 bits."""
    generator = np.random.Philox(key=seed)

    def draw(numel: int) -> torch.Tensor:
        words = generator.random_raw(-(-numel // DRAWS_PER_WORD)).astype("<u8", copy=False)
        return torch.from_numpy(words.view("<i2").astype(np.int16, copy=False)[:numel])

    return draw


def add_noise(scaled: torch.Tensor, noise: Noise) -> torch.Tensor:
    """Add noise to values whose steps are 1, in place."""
    drawn = noise(scaled.numel()).to(torch.float32).add_(0.5)
    return scaled.view(-1).add_(drawn, alpha=2.0**-16).view(scaled.shape)
