"""AdamW: Adam with weight decay that does not enter the moments.

For each tensor θ with gradient g, at its t-th update (Loshchilov and Hutter 2019, arXiv:1711.05101):

    m ← β₁ m + (1 - β₁) g
    v ← β₂ v + (1 - β₂) g²
    c₁ = 1 - β₁ᵗ,  c₂ = √(1 - β₂ᵗ)
    θ ← (1 - lr λ) θ - (lr c₂ / c₁) · m / (√v + ε c₂)

which is the usual form with c₂ taken out of the fraction, one division of tensors less.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from minga.optim.arithmetic import divide, like, rounded, square_root
from minga.optim.moments import (
    WHOLE_MOMENTS,
    AdaptiveOptimizer,
    Decay,
    MomentStorage,
    adaptive_defaults,
    bias_corrections,
    moment_pieces,
)
from minga.optim.reproducible import AlikeParameters


class AdamW(AdaptiveOptimizer):
    """As `torch.optim.AdamW`, and with equal bits everywhere; settings may differ between parameter groups.

    State of each parameter: `step`, and both moments as `storage` says (see `moments.py`). See `ReproducibleOptimizer`
    for errors.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        storage: MomentStorage = WHOLE_MOMENTS,
    ) -> None:
        super().__init__(params, {**adaptive_defaults(lr, betas, eps, weight_decay), **storage.settings()})

    def _update(self, group: dict[str, Any], batch: AlikeParameters) -> None:
        dtype, lr = batch.place.dtype, float(group["lr"])
        correction1, correction2 = bias_corrections(group["betas"], batch.step)
        decay = Decay.of(group["betas"], dtype)
        eps = rounded(float(group["eps"]) * correction2, dtype)
        rate = rounded(lr * correction2 / correction1, dtype)
        kept = rounded(1.0 - lr * float(group["weight_decay"]), dtype)
        scratch = batch.scratch()
        for value, mean, square, gradient in moment_pieces(group, batch):
            change = like(scratch, value)
            decay.update(mean, square, gradient, change)
            square_root(square, change)
            change.add_(eps)
            divide(mean, change)
            change.mul_(rate)
            if kept != 1.0:
                value.mul_(kept)
            value.sub_(change)
