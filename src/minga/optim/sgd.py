"""Stochastic gradient descent with momentum, Nesterov's if wanted.

For each tensor θ with gradient g:

    d = g + λ θ
    b ← μ b + d                    d ← b, with Nesterov d ← d + μ b
    θ ← θ - lr · d
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from torch import Tensor

from minga.optim.arithmetic import like, multiply, rounded
from minga.optim.reproducible import AlikeParameters, ReproducibleOptimizer, require


class SGD(ReproducibleOptimizer):
    """As `torch.optim.SGD` without dampening, and with equal bits everywhere; settings may differ between groups.

    State of each parameter: `momentum_buffer`, if there is momentum. See `ReproducibleOptimizer` for errors.
    """

    counts: ClassVar[bool] = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(params, momentum_defaults(lr, momentum, weight_decay, nesterov))

    def _names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return buffer_names(group)

    def _update(self, group: dict[str, Any], batch: AlikeParameters) -> None:
        descend(group, batch, batch.gradients, float(group["weight_decay"]))


def buffer_names(group: dict[str, Any]) -> tuple[str, ...]:
    """What is kept for the parameters of a group: nothing, if there is no momentum."""
    return ("momentum_buffer",) if group["momentum"] != 0 else ()


def momentum_defaults(lr: float, momentum: float, weight_decay: float, nesterov: bool) -> dict[str, Any]:
    """The settings that SGD and LARS share. Raises `ValueError` for those out of range."""
    require(lr >= 0, "lr", "not be negative", lr)
    require(momentum >= 0, "momentum", "not be negative", momentum)
    require(weight_decay >= 0, "weight_decay", "not be negative", weight_decay)
    require(momentum > 0 or not nesterov, "nesterov", "have momentum", nesterov)
    return {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov}


def descend(group: dict[str, Any], batch: AlikeParameters, gradients: Sequence[Tensor], weight_decay: float) -> None:
    """Update the parameters of a batch by `gradients` with the momentum and learning rate of their group."""
    dtype = batch.place.dtype
    rate, momentum, pull = (rounded(float(each), dtype) for each in (group["lr"], group["momentum"], weight_decay))
    first, second = batch.scratch(), batch.scratch()
    for value, *buffers, gradient in batch.pieces(*buffer_names(group), gradients=gradients):
        change, other = like(first, value), like(second, value)
        direction = gradient
        if pull != 0:
            direction = multiply(value, pull, other).add_(gradient)
        for buffer in buffers:  # one, or none
            buffer.mul_(momentum)
            buffer.add_(direction)
            if group["nesterov"]:
                direction = multiply(buffer, momentum, change).add_(direction)
            else:
                direction = buffer
        value.sub_(multiply(direction, rate, change))
