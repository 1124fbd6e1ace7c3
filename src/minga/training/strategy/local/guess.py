"""The guess of "eager": while its contribution travels, a peer goes on from where it expects the shared parameters.

The expected mean is the last one, in which this peer's part is replaced by its present contribution:

    Δ̃ = mean(t-1) + share · (Δ(t) - Δ(t-1)),     jump = Δ(t) - outer(Δ̃)

The jump changes θ alone, and is taken back when the mean is there, or when the round comes to nothing. Θ, V and
contributions never hold any of it.

Source: Eager updates for DiLoCo (arXiv:2502.12996); share is 1/N there, and that of the samples here.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


class Guess:
    """One peer's guess, in two vectors: what of the last mean is the others', and the jump that θ holds."""

    def __init__(self) -> None:
        self.of_others: torch.Tensor | None = None
        """The last mean without this peer's part of it; None before the first."""
        self.jump: torch.Tensor | None = None
        """By how much θ is beside where its own steps led; None while it is not."""

    def aim(
        self, contribution: torch.Tensor, share: float, outer: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor | None:
        """The jump for a contribution that travels; `outer` gives by how much a mean lowers Θ. None before a mean."""
        if self.of_others is None:
            return None
        return contribution - outer(torch.add(self.of_others, contribution, alpha=share))

    def note(self, mean: torch.Tensor, contribution: torch.Tensor | None, share: float) -> None:
        """A mean has come, with this peer's contribution in it, if there is one; θ is beside nothing any more."""
        self.jump = None
        self.of_others = mean.clone()
        if contribution is not None:
            self.of_others.sub_(contribution, alpha=share)
