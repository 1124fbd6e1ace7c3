"""Which optimizers and models a run can drive by averaged gradients alone."""

from __future__ import annotations

import inspect
from itertools import chain
from typing import Final

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from minga.core.errors import ConfigurationError
from minga.optim.sgd import SGD

_OPTIONAL: Final = inspect.Parameter("closure", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Raise `ConfigurationError` unless `optimizer` can step by dense gradients alone."""
    name = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise ConfigurationError(f"{name} needs sparse gradients, and averaged ones are dense; use Adam")
    if inspect.signature(optimizer.step).parameters.get("closure", _OPTIONAL).default is inspect.Parameter.empty:
        raise ConfigurationError(f"{name} evaluates the loss several times per step, which peers cannot do together")


def check_model(model: nn.Module | None, optimizer: torch.optim.Optimizer) -> None:
    """Raise `ConfigurationError` unless all parameters have shapes, and `optimizer` trains some of `model`."""
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    own = [] if model is None else list(model.parameters())
    if any(map(is_lazy, chain(trained, own, () if model is None else model.buffers()))):
        raise ConfigurationError(
            "a lazy layer of the model, such as LazyLinear, has no shape yet: run one forward pass first, then make "
            "the optimizer"
        )
    if model is not None and not {id(each) for each in trained} & {id(each) for each in own}:
        raise ConfigurationError(
            "the optimizer trains no parameter of model=...: make it of the parameters of this very model (a "
            "copy has others)"
        )


def check_plain_descent(strategy: str, optimizer: torch.optim.Optimizer, *, is_clipped: bool) -> None:
    """Raise `ConfigurationError` unless `optimizer` moves parameters by the learning rate times what a strategy says,
    and by weight decay, no more.
    """
    is_plain = type(optimizer) in (torch.optim.SGD, SGD) and not any(
        group.get("momentum") or group.get("dampening") or group.get("maximize") for group in optimizer.param_groups
    )
    if not is_plain:
        raise ConfigurationError(
            f'training.strategy = "{strategy}" brings its own optimizer instead of {type(optimizer).__name__}: take '
            'optimizer.name = "sgd" with optimizer.momentum = 0, or training.strategy = "synchronous"'
        )
    if is_clipped:
        raise ConfigurationError(
            f'training.strategy = "{strategy}" does not step by gradients: set optimizer.max_grad_norm = "off"'
        )
