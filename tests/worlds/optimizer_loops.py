"""Models, batches and an ordinary loop, for the tests of `minga.Optimizer`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import nn

import minga

BATCH = 12
STEPS = 4

MakePeer = Callable[..., minga.Peer]


def small_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


class Normed(nn.Module):
    """BatchNorm, a mask with infinities, a table that is rebuilt, and a counter of the program's own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(6, 4), nn.BatchNorm1d(4)
        self.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))
        self.register_buffer("table", torch.arange(4.0), persistent=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.as_tensor(self.norm(self.inner(x)))


def batches(samples: int) -> Iterator[torch.Tensor]:
    for seed in itertools.count():
        yield torch.randn(samples, 6, generator=torch.Generator().manual_seed(seed))


def mean_loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def train(opt: minga.Optimizer, model: nn.Module, samples: int = BATCH, steps: int | None = None) -> None:
    for batch in batches(samples):
        if opt.finished or (steps is not None and opt.global_step >= steps):
            return
        mean_loss(model, batch).backward()
        opt.step(samples=samples)
        opt.zero_grad()


def same(first: nn.Module, second: nn.Module, tolerance: float = 0.0) -> bool:
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in pairs)
