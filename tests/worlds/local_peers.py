"""Peers of the strategy "local" without a network: models that step alone, and rounds by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from minga.averaging.codecs.residual import ContributionFate
from minga.core.spec.run_spec import RunSpec
from minga.training.replica.replica import Replica
from minga.training.strategy.interface import Strategy
from minga.training.strategy.local import Local, LocalSettings
from minga.training.strategy.synchronous import Synchronous

LAYERS, WIDTH = 4, 6
MakeOptimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def small_model(seed: int = 0, *, dtype: torch.dtype = torch.float32, norm: bool = False) -> torch.nn.Sequential:
    """A few layers that are named by numbers, alike for equal seeds."""
    torch.manual_seed(seed)
    layers: list[torch.nn.Module] = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    return torch.nn.Sequential(*layers, *([torch.nn.BatchNorm1d(WIDTH)] if norm else [])).to(dtype)


def sgd(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Plain gradient descent."""
    return torch.optim.SGD(parameters, lr=0.1)


class LocalPeer:
    """One peer: a model, its optimizer, and the strategy."""

    def __init__(
        self,
        *,
        make_optimizer: MakeOptimizer = sgd,
        model: torch.nn.Module | None = None,
        kind: type[Strategy] = Local,
        unit: int = 1,
        **settings: Any,
    ) -> None:
        self.model = small_model() if model is None else model
        optimizer = make_optimizer(list(self.model.parameters()))
        training = {"strategy": "local" if kind is Local else "synchronous"}
        spec = RunSpec.from_mapping({"name": "local", "training": training})
        self.replica = Replica(spec, optimizer, model=self.model)
        chosen = LocalSettings(**settings) if kind is Local else None
        self.strategy = kind(threading.Condition(), unit=unit, settings=chosen)
        self.strategy.begin(self.replica)
        self._chance = torch.Generator().manual_seed(7)

    def micro_batch(self, samples: int, seed: int) -> bool:
        """Compute the gradients of random samples, and give them to the strategy."""
        loss_of(self.model, samples, seed).backward()
        taken = self.strategy.micro_batch(samples)
        if taken:
            self.strategy.count(samples)
        self.replica.zero_grad()
        return taken

    def values(self) -> torch.Tensor:
        """θ."""
        return self.replica.read_values()[: self.replica.vector.parameters_numel]

    @property
    def anchor(self) -> torch.Tensor:
        """Θ."""
        assert isinstance(self.strategy, Local)
        return self.strategy._anchor[: self.replica.vector.parameters_numel]

    def seal(self) -> tuple[torch.Tensor | None, int]:
        """Close the round; what is contributed."""
        self.strategy.close()
        return self.strategy.contribution()

    def absorb(self, mean: torch.Tensor, fate: ContributionFate = ContributionFate.COUNTED) -> None:
        """The round counted."""
        self.strategy.absorb(self.replica.step + 1, mean, fate)


def loss_of(model: torch.nn.Module, samples: int, seed: int) -> torch.Tensor:
    """The loss of random samples; the same for equal seeds."""
    chance = torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype
    inputs = torch.randn(samples, WIDTH, generator=chance).to(dtype)
    targets = torch.randn(samples, WIDTH, generator=chance).to(dtype)
    return (model(inputs) - targets).square().mean()


def mean_of(contributions: Sequence[tuple[torch.Tensor | None, int]]) -> torch.Tensor:
    """The mean by weights."""
    given = [(vector, weight) for vector, weight in contributions if vector is not None]
    total = sum(vector * weight for vector, weight in given)
    assert isinstance(total, torch.Tensor)
    return total / sum(weight for _, weight in given)


def take_round(peers: Sequence[LocalPeer]) -> torch.Tensor:
    """A round of all these peers, of which all contributions count; returns the mean."""
    mean = mean_of([peer.seal() for peer in peers])
    for peer in peers:
        peer.absorb(mean, ContributionFate.COUNTED if peer.strategy.complete_samples else ContributionFate.ABSENT)
    return mean


def synchronous_peer(**changes: Any) -> LocalPeer:
    """A peer of the synchronous strategy, to compare with."""
    return LocalPeer(kind=Synchronous, **changes)
