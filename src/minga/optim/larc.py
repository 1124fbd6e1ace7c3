"""LARC without clipping: SGD with momentum whose gradient of each tensor, decay included, is scaled to its norm.

For each tensor θ with gradient g, where neither norm is 0 (the rule of NVIDIA apex, with which SwAV is trained; LARS of
You et al. 2017, arXiv:1708.03888, with a constant in the divisor, and for every tensor):

    d = (g + λ θ) · η ‖θ‖ / (‖g‖ + λ ‖θ‖ + ε)            (d = g where either norm is 0: no decay either)
    b ← μ b + d
    θ ← θ - lr · b
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch

from minga.optim.arithmetic import multiply, rounded, scale
from minga.optim.norms import norms
from minga.optim.reproducible import AlikeParameters, ReproducibleOptimizer, require
from minga.optim.sgd import buffer_names, descend, momentum_defaults


class LARC(ReproducibleOptimizer):
    """LARC as a `torch.optim.Optimizer`, with equal bits everywhere; settings may differ between parameter groups.

    State of each parameter: `momentum_buffer`, if there is momentum. See `ReproducibleOptimizer` for errors. An update
    needs memory of the size of the largest parameter, on an accelerator of that of the group.
    """

    counts: ClassVar[bool] = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        eps: float = 1e-8,
    ) -> None:
        require(trust_coefficient > 0, "trust_coefficient", "be above 0", trust_coefficient)
        require(eps >= 0, "eps", "not be negative", eps)
        defaults = momentum_defaults(lr, momentum, weight_decay, nesterov=False)
        super().__init__(params, {**defaults, "trust_coefficient": trust_coefficient, "eps": eps})

    def _names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return buffer_names(group)

    def _update(self, group: dict[str, Any], batch: AlikeParameters) -> None:
        for part in batch.parts():
            descend(group, part, self._scaled(group, part), 0.0)

    def _scaled(self, group: dict[str, Any], batch: AlikeParameters) -> list[torch.Tensor]:
        """The vectors d. Where θ is 0, g + λ θ is g already."""
        decay, coefficient, eps = (float(group[name]) for name in ("weight_decay", "trust_coefficient", "eps"))
        dtype = batch.place.dtype
        pull, scaled = rounded(decay, dtype), batch.vectors()
        for value, target, gradient in batch.pieces(extra=[scaled]):
            multiply(value, pull, target).add_(gradient)
        sizes = zip(norms(batch.parameters), norms(batch.gradients), strict=True)
        trusts = list[float]()
        for target, (value_norm, gradient_norm) in zip(scaled, sizes, strict=True):
            if gradient_norm == 0:
                target.zero_()
            is_scaled = value_norm > 0 and gradient_norm != 0
            divisor = gradient_norm + decay * value_norm + eps
            trusts.append(coefficient * value_norm / divisor if is_scaled else 1.0)
        scale(scaled, [rounded(trust, dtype) for trust in trusts])
        return scaled
