"""Work for tests of secure members: a noisy bowl, without a model."""

from __future__ import annotations

import numpy as np
import torch
from blake3 import blake3

from minga.averaging._layout import VectorLayout


class Quadratic:
    """Work: a noisy bowl, 0.5 * |x|^2; the noise of a gradient follows from its seed."""

    def __init__(self, numel: int, codec: str = "float32", rate: float = 0.1, noise: float = 0.1) -> None:
        self.layout = VectorLayout((numel,), codec)
        self.parameters = {0: torch.ones(numel)}
        self.step, self.rate, self.noise = 0, rate, noise

    async def gradient(self, step: int, seed: bytes) -> torch.Tensor:
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(seed[:16], "little")))
        noise = torch.from_numpy(generator.standard_normal(self.layout.total)).float()
        return self.parameters[step] + self.noise * noise

    async def apply(self, step: int, mean: torch.Tensor) -> None:
        self.parameters[step + 1] = self.parameters[step] - self.rate * mean
        self.step = step + 1
        self.parameters.pop(step - 3, None)

    async def digest(self) -> bytes:
        return blake3(self.parameters[self.step].numpy().tobytes()).digest()

    @property
    def loss(self) -> float:
        return 0.5 * float(self.parameters[self.step].square().mean())
