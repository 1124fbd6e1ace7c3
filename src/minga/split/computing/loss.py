"""What a batch is trained by: the loss that one side or the other computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

LossFunction = Callable[[Any, Any], torch.Tensor]
"""The mean loss of a batch, by outputs and labels."""


def cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The usual loss: `functional.cross_entropy`, of which a wrong class is a `ValueError` on every device."""
    if not labels.is_floating_point() and outputs.dim() > 1 and labels.numel():
        low, high = (int(each) for each in torch.aminmax(labels))
        if high >= outputs.shape[1] or (low < 0 and low != -100):
            raise ValueError(f"classes from {low} to {high}, where the model knows {outputs.shape[1]}")
    return functional.cross_entropy(outputs, labels)
