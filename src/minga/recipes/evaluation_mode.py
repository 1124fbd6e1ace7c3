"""How the model of a recipe is evaluated: as it is, and without a trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[torch.device]:
    """Inside, the model evaluates and nothing notes gradients; afterwards it trains if it did before.

    Gives the device of its parameters.
    """
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield next(model.parameters()).device
    finally:
        model.train(was_training)
