"""LARS and LARC: SGD with momentum whose gradient of each tensor is scaled to the norm of that tensor.

For each tensor θ with gradient g (LARS: You et al. 2017, arXiv:1708.03888; momentum is taken of the scaled gradients,
without the learning rate, as torch's SGD does):

    trust = η ‖θ‖ / (‖g‖ + λ ‖θ‖ + ε)            (1 where either norm is 0)
    d = trust · (g + λ θ)
    b ← μ b + d                    d ← b, with Nesterov d ← d + μ b
    θ ← θ - lr · d

LARC without clipping is the rule of NVIDIA apex, with which SwAV is trained: every tensor is scaled, and d = 0 where g
is 0, without decay.
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
        eps: float = 0.0,
    ) -> None:
        require(trust_coefficient >= 0, "trust_coefficient", "not be negative", trust_coefficient)
        require(eps >= 0, "eps", "not be negative", eps)
        defaults = momentum_defaults(lr, momentum, weight_decay, nesterov)
        super().__init__(params, {**defaults, "trust_coefficient": trust_coefficient, "eps": eps})

    def _names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return buffer_names(group)

    def _update(self, group: dict[str, Any], batch: AlikeParameters) -> None:
        if group["trust_coefficient"] == 0:
            descend(group, batch, batch.gradients, float(group["weight_decay"]))
            return
        for part in batch.parts():
            self._update_part(group, part)

    def _update_part(self, group: dict[str, Any], batch: AlikeParameters) -> None:
        dtype = batch.place.dtype
        pull, scaled = rounded(float(group["weight_decay"]), dtype), batch.vectors()
        for value, target, gradient in batch.pieces(extra=[scaled]):
            multiply(value, pull, target).add_(gradient)
        sizes = zip(norms(batch.parameters), norms(batch.gradients), strict=True)
        scale(scaled, [rounded(self._trust(group, value, gradient), dtype) for value, gradient in sizes])
        descend(group, batch, scaled, 0.0)

    def _trust(self, group: dict[str, Any], value: float, gradient: float) -> float:
        """By what the direction of a tensor is multiplied, by its norm and that of its gradient."""
        if not (value > 0 and gradient > 0):
            return 1.0
        divisor = gradient + float(group["weight_decay"]) * value + float(group["eps"])
        return float(group["trust_coefficient"]) * value / divisor


class LARC(LARS):
    """LARC as a `torch.optim.Optimizer`, with equal bits everywhere; see `LARS`."""

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
        super().__init__(
            params, lr, momentum=momentum, weight_decay=weight_decay, trust_coefficient=trust_coefficient, eps=eps
        )

    def _trust(self, group: dict[str, Any], value: float, gradient: float) -> float:
        return 0.0 if gradient == 0 else super()._trust(group, value, gradient)
