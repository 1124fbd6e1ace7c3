"""The two moments that AdamW and LAMB keep: decaying means of the gradient and of its square."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minga.optim.arithmetic import power, rounded
from minga.optim.reproducible import require

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Decay:
    """The factors by which both moments decay, and by which the gradient and its square enter, rounded to one type."""

    first: float
    first_rest: float
    second: float
    second_rest: float

    @classmethod
    def of(cls, betas: tuple[float, float], dtype: torch.dtype) -> Decay:
        """The factors for the decay rates `betas`."""
        one, two = (float(beta) for beta in betas)
        return cls(*(rounded(each, dtype) for each in (one, 1.0 - one, two, 1.0 - two)))

    def update(self, mean: Tensor, square: Tensor, gradient: Tensor, scratch: Tensor) -> None:
        """Let a gradient enter both moments; all are flat and of one length."""
        mean.mul_(self.first)
        torch.mul(gradient, self.first_rest, out=scratch)
        mean.add_(scratch)
        square.mul_(self.second)
        torch.mul(gradient, gradient, out=scratch)
        scratch.mul_(self.second_rest)
        square.add_(scratch)


def bias_corrections(betas: tuple[float, float], step: int) -> tuple[float, float]:
    """Return 1 - β₁ᵗ and √(1 - β₂ᵗ): what the first moment and the root of the second are to be divided by."""
    one, two = (float(beta) for beta in betas)
    return 1.0 - power(one, step), math.sqrt(1.0 - power(two, step))


def adaptive_defaults(lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> dict[str, Any]:
    """The settings that AdamW and LAMB share. Raises `ValueError` for those out of range."""
    require(lr >= 0, "lr", "not be negative", lr)
    require(len(betas) == 2 and all(0 <= beta < 1 for beta in betas), "betas", "be from 0 to below 1", betas)
    require(eps >= 0, "eps", "not be negative", eps)
    require(weight_decay >= 0, "weight_decay", "not be negative", weight_decay)
    return {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
