"""Noise in the gradients that a client with a head sends, so that they tell less about the labels."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from minga.core.errors import ConfigurationError


class GradientNoise(nn.Module):
    """Passes its input on as it is, and adds noise to the gradient that comes back; put it at the front of a head.

    The gradient of a sample tells its label: behind a linear head, gradients of equal labels have nearly equal
    directions. The noise is normal, as long as `scale` times the mean norm of the gradients of the batch. It makes
    labels harder to tell, and is no proof of anything; it adds none in evaluation mode. Raises `ConfigurationError` for
    a scale that is negative or not finite.
    """

    def __init__(self, scale: float) -> None:
        super().__init__()
        if not (math.isfinite(scale) and scale >= 0.0):
            raise ConfigurationError(f"gradient noise: scale = {scale}: it must be a number from 0 on")
        self.scale = scale

    def forward(self, activations: Tensor) -> Tensor:
        """The activations, [n, …]."""
        if not (self.training and self.scale):
            return activations
        found: Tensor = _Noise.apply(activations, self.scale)  # type: ignore[no-untyped-call]
        return found

    def extra_repr(self) -> str:
        """The scale, where the module is printed."""
        return f"scale={self.scale:g}"


class _Noise(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, activations: Tensor, scale: float) -> Tensor:
        context.scale = scale
        return activations.view_as(activations)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> tuple[Tensor, None]:
        (gradient,) = gradients
        rows = gradient.flatten(1)
        deviation = context.scale * rows.norm(dim=1).mean() / math.sqrt(rows.shape[1])
        return gradient + deviation * torch.randn_like(gradient), None
