"""The outer optimizer: the step that the shared parameters take by the mean of a round.

    V ← μV + Δ,   Θ ← Θ - η (Δ + μV) with Nesterov's momentum, else Θ - ηV; without momentum Θ - ηΔ

Δ is old minus new, so it points like a gradient. Each operation rounds once, so all peers come to equal bits.

Source: DiLoCo (arXiv:2311.08105), with the formula of torch.optim.SGD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from minga.optim.arithmetic import rounded

PIECE: Final = 1 << 20
"""Elements for which memory is taken at a time."""


@dataclass(frozen=True)
class OuterOptimizer:
    """SGD on slices of the shared parameters, which are flat float32 CPU tensors."""

    learning_rate: float
    momentum: float
    nesterov: bool

    def step(self, anchor: torch.Tensor, momentum: torch.Tensor | None, mean: torch.Tensor) -> None:
        """Change a slice of Θ, and the same of V, by that of the mean. `momentum` is None if there is none."""
        for start in range(0, anchor.numel(), PIECE):
            piece = slice(start, start + PIECE)
            update = self._update(None if momentum is None else momentum[piece], mean[piece])
            anchor[piece].sub_(update.mul_(rounded(self.learning_rate, torch.float32)))

    def movement(self, momentum: torch.Tensor | None, mean: torch.Tensor) -> torch.Tensor:
        """By how much such a step would lower Θ, with nothing changed."""
        update = self._update(None if momentum is None else momentum.clone(), mean)
        return update.mul_(rounded(self.learning_rate, torch.float32))

    def _update(self, momentum: torch.Tensor | None, mean: torch.Tensor) -> torch.Tensor:
        """The direction, in memory of its own."""
        if momentum is None:
            return mean.clone()
        momentum.mul_(rounded(self.momentum, torch.float32)).add_(mean)
        if not self.nesterov:
            return momentum.clone()
        return momentum.mul(rounded(self.momentum, torch.float32)).add_(mean)
