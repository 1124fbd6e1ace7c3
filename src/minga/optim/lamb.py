"""LAMB: Adam whose update of each tensor is scaled to the norm of that tensor, for very large batches.

For each tensor θ with gradient g, at its t-th update (You et al. 2020, arXiv:1904.00962, with bias correction as a
factor of the learning rate and a bound on the norm):

    m ← β₁ m + (1 - β₁) g
    v ← β₂ v + (1 - β₂) g²
    r = m / (√v + ε) + λ θ
    trust = min(‖θ‖, clamp) / ‖r‖            (1 where either norm is 0)
    θ ← θ - lr · √(1 - β₂ᵗ) / (1 - β₁ᵗ) · trust · r
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from minga.optim.arithmetic import divide, like, multiply, rounded, scale, square_root
from minga.optim.moments import (
    WHOLE_MOMENTS,
    AdaptiveOptimizer,
    Decay,
    MomentStorage,
    adaptive_defaults,
    bias_corrections,
    moment_pieces,
)
from minga.optim.norms import norms
from minga.optim.pieces import pieces
from minga.optim.reproducible import AlikeParameters, require
from minga.optim.shards import like_shard


class LAMB(AdaptiveOptimizer):
    """LAMB as a `torch.optim.Optimizer`, with equal bits everywhere; settings may differ between parameter groups.

    Without `debias` the factor of the learning rate is left out. State of each parameter: `step`, and both moments as
    `storage` says (see `moments.py`). See `ReproducibleOptimizer` for errors. An update needs
    memory of the size of the largest parameter, on an accelerator of that of the group.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        clamp_value: float = 10_000.0,
        *,
        debias: bool = True,
        storage: MomentStorage = WHOLE_MOMENTS,
    ) -> None:
        require(clamp_value > 0, "clamp_value", "be positive", clamp_value)
        own = {"clamp_value": clamp_value, **({} if debias else {"debias": False}), **storage.settings()}
        super().__init__(params, {**adaptive_defaults(lr, betas, eps, weight_decay), **own})

    def _update(self, group: dict[str, Any], batch: AlikeParameters) -> None:
        for part in batch.parts():
            self._update_part(group, part)

    def _update_part(self, group: dict[str, Any], batch: AlikeParameters) -> None:
        dtype = batch.place.dtype
        updates = batch.vectors()
        decay = Decay.of(group["betas"], dtype)
        eps, pull = (rounded(float(group[name]), dtype) for name in ("eps", "weight_decay"))
        scratch = batch.scratch()
        for value, mean, square, update, gradient in moment_pieces(group, batch, [updates]):
            decay.update(mean, square, gradient, update)
            square_root(square, update)
            update.add_(eps)
            divide(mean, update)
            if pull != 0:
                update.add_(multiply(value, pull, like(scratch, value)))

        debias = group.get("debias", True)
        correction1, correction2 = bias_corrections(group["betas"], batch.step) if debias else (1.0, 1.0)
        rate, clamp = float(group["lr"]) * correction2 / correction1, float(group["clamp_value"])
        sharded = [like_shard(update, parameter) for update, parameter in zip(updates, batch.parameters, strict=True)]
        ratios = zip(norms(batch.parameters), norms(sharded), strict=True)
        scale(updates, [rounded(rate * _trust(*both, clamp), dtype) for both in ratios])
        for value, update in pieces(batch.place, [batch.parameters], [updates]):
            value.sub_(update)


def _trust(value_norm: float, update_norm: float, clamp: float) -> float:
    return min(value_norm, clamp) / update_norm if value_norm > 0 and update_norm > 0 else 1.0
