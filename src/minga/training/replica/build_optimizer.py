"""From the optimizer section of a run spec to a torch optimizer and its schedule."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from minga.core.errors import ConfigurationError
from minga.core.spec.sections import OptimizerSection
from minga.training.replica.lamb import Lamb


def build_optimizer(settings: OptimizerSection, model: nn.Module) -> tuple[Optimizer, LRScheduler]:
    """The optimizer of a run, and the scheduler that is to be stepped once per global step.

    Weight decay applies to matrices and higher; vectors and scalars, which are biases and the parameters of norms, have
    none. Gradient clipping is not the optimizer's: it comes after averaging. Raises `ConfigurationError` if the model
    has nothing to train.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise ConfigurationError("the model has no parameter that requires a gradient")
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    optimizer: Optimizer
    if settings.name == "lamb":
        optimizer = Lamb(
            groups,
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.epsilon,
            clamp_value=settings.clamp_value,
        )
    elif settings.name == "adamw":
        optimizer = AdamW(groups, lr=settings.learning_rate, betas=settings.betas, eps=settings.epsilon)
    else:
        optimizer = SGD(groups, lr=settings.learning_rate, momentum=settings.momentum)
    return optimizer, LambdaLR(optimizer, schedule(settings))


def schedule(settings: OptimizerSection) -> Callable[[int], float]:
    """The learning rate's factor of update number `step` (from 0), a function of the global step alone.

    It rises linearly over the warm-up, of which the last update has the full rate (the first is not wasted on a rate of
    0), then falls to 0 at `total_steps`, linearly or along half a cosine, or stays.
    """
    warmup, total, kind = settings.warmup_steps, settings.total_steps, settings.schedule

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if kind == "constant":
            return 1.0
        left = max(0.0, (total - step) / max(1, total - warmup))
        return left if kind == "linear" else 0.5 * (1.0 - math.cos(math.pi * left))

    return factor
