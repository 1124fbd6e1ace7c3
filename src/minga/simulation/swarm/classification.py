"""A small classification task whose every sample has a number, so that a run can be repeated sample by sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LRScheduler

from minga.core.spec.run_spec import RunSpec
from minga.training.replica.build_optimizer import build_optimizer

INPUTS, HIDDEN, CLASSES = 32, 64, 10
SAMPLES, HELD_OUT = 16_384, 2_048


class _Data(NamedTuple):
    """All samples with their classes, and the random numbers' state after they were drawn."""

    x: torch.Tensor
    y: torch.Tensor
    random_state: torch.Tensor


@lru_cache(maxsize=4)
def _data(seed: int) -> _Data:
    """The task of a seed; many peers in one process share it."""
    torch.manual_seed(seed)
    teacher = nn.Linear(INPUTS, CLASSES)
    x = torch.randn(SAMPLES + HELD_OUT, INPUTS)
    with torch.no_grad():
        y = (teacher(x) + 0.5 * torch.sin(3 * x[:, :CLASSES])).argmax(1)
    return _Data(x, y, torch.get_rng_state())


@dataclass
class Classification:
    """Model, optimizer and data of a run spec; everything that is random comes from the spec's seed."""

    spec: RunSpec

    def __post_init__(self) -> None:
        data = _data(self.spec.training.seed)
        torch.set_rng_state(data.random_state)
        self._x, self._y = data.x[:SAMPLES], data.y[:SAMPLES]
        self._held_out = data.x[SAMPLES:], data.y[SAMPLES:]
        self.flips_labels = False
        """Whether gradients are those of wrong labels, as an attacker wants them."""
        self.model = nn.Sequential(
            nn.Linear(INPUTS, HIDDEN), nn.GELU(), nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.GELU(),
            nn.Linear(HIDDEN, CLASSES),
        )  # fmt: skip
        made = build_optimizer(self.spec.optimizer, self.model, run=self.spec)
        self.optimizer: torch.optim.Optimizer = made[0]
        self.scheduler: LRScheduler = made[1]

    def backward(self, samples: Sequence[int]) -> float:
        """Set the gradients of the mean loss of these samples, and return it."""
        chosen = torch.tensor(samples)
        labels = CLASSES - 1 - self._y[chosen] if self.flips_labels else self._y[chosen]
        loss = cross_entropy(self.model(self._x[chosen]), labels)
        torch.autograd.backward(loss)
        return float(loss.detach())

    def samples(self, chosen: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and labels of these samples."""
        numbers = torch.tensor(chosen)
        return self._x[numbers], self._y[numbers]

    def held_out(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and labels of the samples that nobody trains on."""
        return self._held_out

    @torch.no_grad()
    def held_out_loss(self) -> float:
        """The mean loss of samples that nobody trains on."""
        x, y = self._held_out
        return float(cross_entropy(self.model(x), y))

    def parameters(self) -> torch.Tensor:
        """A copy of all parameters as one float64 vector."""
        return torch.cat([p.detach().double().reshape(-1) for p in self.model.parameters()])
