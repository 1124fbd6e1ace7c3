"""DeMo: steps are the signs of the mean, at the run's learning rate, and no other optimizer has a say."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.optim import LAMB, SGD, AdamW
from minga.training.replica.replica import Replica
from minga.training.strategy.demo import Demo
from minga.training.strategy.interface import ContributionFate

SPEC = RunSpec.from_mapping({"name": "demo", "training": {"strategy": "demo"}})
RATE, DECAY = 0.01, 0.1


def model() -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))


def trainer(kind: type[torch.optim.Optimizer], **settings: Any) -> tuple[Demo, Replica]:
    trained = model()
    optimizer = kind(trained.parameters(), lr=RATE, **settings)
    replica = Replica(SPEC, optimizer, model=trained)
    strategy = Demo(threading.Condition(), unit=1)
    strategy.begin(replica)
    return strategy, replica


@pytest.mark.parametrize("kind", [SGD, torch.optim.SGD])
def test_a_step_is_the_sign_of_the_mean_and_decoupled_weight_decay(kind: type[torch.optim.Optimizer]) -> None:
    strategy, replica = trainer(kind, weight_decay=DECAY)
    torch.manual_seed(2)
    size = replica.vector.parameters_numel
    for step in range(1, 4):
        mean = torch.randn(replica.vector.numel)
        mean[:3] = torch.tensor([0.0, -0.0, 1e-40])
        before, kept = replica.read_values(), mean.clone()
        strategy.absorb(step, mean, ContributionFate.COUNTED)
        wanted = (before - RATE * (mean.sign() + DECAY * before))[:size]
        assert torch.allclose(replica.read_values()[:size], wanted, atol=1e-7)
        assert torch.equal(mean, kept)


def test_averaged_buffers_move_by_their_mean() -> None:
    strategy, replica = trainer(SGD)
    mean = torch.full((replica.vector.numel,), 0.25)
    strategy.absorb(1, mean, ContributionFate.COUNTED)
    assert torch.equal(replica.tensors()["model/1.running_mean"], torch.full((4,), 0.25))


@pytest.mark.parametrize("kind", [AdamW, LAMB, torch.optim.AdamW, torch.optim.RMSprop])
def test_another_optimizer_is_refused_and_not_ignored(kind: type[torch.optim.Optimizer]) -> None:
    with pytest.raises(ConfigurationError, match=f'"demo" brings its own optimizer instead of {kind.__name__}'):
        trainer(kind)


def test_momentum_and_clipping_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"optimizer\.momentum = 0"):
        trainer(SGD, momentum=0.9)
    trained = model()
    with pytest.raises(ConfigurationError, match='max_grad_norm = "off"'):
        Replica(SPEC, SGD(trained.parameters(), lr=RATE), model=trained, max_grad_norm=1.0)
