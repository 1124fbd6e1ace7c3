"""LARS: SGD with momentum whose gradient of each tensor is scaled to the norm of that tensor, for very large batches.

For each tensor θ with gradient g (You et al. 2017, arXiv:1708.03888; momentum is taken of the scaled gradients, without
the learning rate, as torch's SGD does):

    trust = η ‖θ‖ / (‖g‖ + λ ‖θ‖)            (1 where either norm is 0)
    d = trust · (g + λ θ)
    b ← μ b + d                    d ← b, with Nesterov d ← d + μ b
    θ ← θ - lr · d
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from minga.optim.arithmetic import multiply, rounded, scale
from minga.optim.norms import norms
from minga.optim.reproducible import AlikeParameters, ReproducibleOptimizer, require
from minga.optim.sgd import buffer_names, descend, momentum_defaults


class LARS(ReproducibleOptimizer):
    """LARS as a `torch.optim.Optimizer`, with equal bits everywhere; settings may differ between parameter groups.

    A group with `trust_coefficient` 0 is updated as by SGD, which is usual for biases and the parameters of norms.
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
        nesterov: bool = False,
        trust_coefficient: float = 0.001,
    ) -> None:
        require(trust_coefficient >= 0, "trust_coefficient", "not be negative", trust_coefficient)
        defaults = momentum_defaults(lr, momentum, weight_decay, nesterov)
        super().__init__(params, {**defaults, "trust_coefficient": trust_coefficient})

    def _names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return buffer_names(group)

    def _update(self, group: dict[str, Any], batch: AlikeParameters) -> None:
        coefficient, weight_decay = float(group["trust_coefficient"]), float(group["weight_decay"])
        if coefficient == 0:
            descend(group, batch, batch.gradients, weight_decay)
            return
        for part in batch.parts():
            self._update_part(group, part, coefficient, weight_decay)

    def _update_part(
        self, group: dict[str, Any], batch: AlikeParameters, coefficient: float, weight_decay: float
    ) -> None:
        dtype = batch.place.dtype
        pull = rounded(weight_decay, dtype)
        scaled = batch.vectors()
        for value, target, gradient in batch.pieces(extra=[scaled]):
            multiply(value, pull, target).add_(gradient)
        ratios = zip(norms(batch.parameters), norms(batch.gradients), strict=True)
        trusts = [
            coefficient * value / (gradient + weight_decay * value) if value > 0 and gradient > 0 else 1.0
            for value, gradient in ratios
        ]
        scale(scaled, [rounded(trust, dtype) for trust in trusts])
        descend(group, batch, scaled, 0.0)
