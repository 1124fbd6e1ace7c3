"""Where a codec leaves something out, each peer clips its own gradient, and nobody clips the mean."""

from __future__ import annotations

import threading

import pytest
import torch

from minga.averaging.codecs.residual import ContributionFate
from minga.optim import SGD
from minga.training.replica.replica import Replica
from minga.training.strategy.synchronous import Synchronous
from tests.worlds.swarm_tools import make_spec

NUMEL = 5000


@pytest.mark.parametrize(
    ("codec", "size", "own", "step"),
    [("topk", 5.0, 1.0, 5.0), ("topk", 0.5, 0.5, 5.0), ("float32", 5.0, 5.0, 1.0)],
)
def test_own_gradients_or_the_mean_are_clipped(codec: str, size: float, own: float, step: float) -> None:
    """A peer contributes a gradient of norm `size`, where the run's largest is 1; the mean has the norm 5."""
    model = torch.nn.Linear(NUMEL, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    spec = make_spec(8, codec=codec)
    replica = Replica(spec, SGD(model.parameters(), lr=1.0), model=model, max_grad_norm=1.0)
    strategy = Synchronous(threading.Condition(), unit=4)
    strategy.begin(replica)
    model.weight.grad = torch.full((1, NUMEL), size / NUMEL**0.5)
    assert strategy.micro_batch(4)
    strategy.count(4)
    strategy.close()
    vector, samples = strategy.contribution()
    assert vector is not None
    assert samples == 4
    assert float(vector[:NUMEL].norm()) == pytest.approx(own, rel=1e-5)
    mean = replica.vector.new()
    mean[:NUMEL] = 5.0 / NUMEL**0.5
    strategy.absorb(1, mean, ContributionFate.COUNTED)
    assert float(replica.read_values().norm()) == pytest.approx(step, rel=1e-5)
