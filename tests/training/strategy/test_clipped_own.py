"""Where a codec or a sketch leaves something out, each peer clips its own gradient, and nobody clips the mean."""

from __future__ import annotations

import threading

import pytest
import torch

from minga.averaging.codecs.residual import ContributionFate
from minga.core.errors import ConfigurationError
from minga.optim import SGD
from minga.training.replica.replica import Replica
from minga.training.strategy.synchronous import Synchronous
from tests.worlds.swarm_tools import make_spec

NUMEL = 5000


def sealed(codec: str, size: float, sketch: str = "identity") -> tuple[Synchronous, Replica, torch.Tensor]:
    """A peer that contributes a gradient of norm `size`, where the run's largest is 1."""
    model = torch.nn.Linear(NUMEL, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    spec = make_spec(8, averaging={"codec": codec, "sketch": sketch})
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
    return strategy, replica, vector


@pytest.mark.parametrize(
    ("codec", "sketch", "size", "own", "step"),
    [
        ("topk", "identity", 5.0, 1.0, 5.0),
        ("topk", "identity", 0.5, 0.5, 5.0),
        ("float32", "powersgd", 5.0, 1.0, 5.0),
        ("float32", "dct64", 5.0, 5.0, 1.0),
        ("float32", "identity", 5.0, 5.0, 1.0),
    ],
)
def test_own_gradients_or_the_mean_are_clipped(codec: str, sketch: str, size: float, own: float, step: float) -> None:
    strategy, replica, vector = sealed(codec, size, sketch)
    assert float(vector[:NUMEL].norm()) == pytest.approx(own, rel=1e-5)
    mean = replica.vector.new()
    mean[:NUMEL] = 5.0 / NUMEL**0.5
    strategy.absorb(1, mean, ContributionFate.COUNTED)
    assert float(replica.read_values().norm()) == pytest.approx(step, rel=1e-5)


def test_what_is_taken_back_is_as_long_as_before() -> None:
    strategy, _, vector = sealed("topk", 5.0)
    strategy.take_back()
    assert float(vector[:NUMEL].norm()) == pytest.approx(5.0, rel=1e-5)
    again, _ = strategy.contribution()
    assert again is not None
    assert float(again[:NUMEL].norm()) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("averaging", [{"codec": "topk"}, {"codec": "float32", "sketch": "powersgd"}], ids=str)
def test_no_element_of_a_mean_is_clipped_from_which_something_is_left_out(averaging: dict[str, str]) -> None:
    """Steps of a peer alone are by its own gradients, whatever rounds leave out."""
    spec = make_spec(8, averaging=averaging)
    alone = make_spec(8, averaging=averaging, training={"strategy": "local"})
    model = torch.nn.Linear(2, 1)
    Replica(alone, SGD(model.parameters(), lr=1.0), model=model, max_grad_value=1.0)
    with pytest.raises(ConfigurationError, match=r"(codec|sketch) .* leaves out of it what comes later"):
        Replica(spec, SGD(model.parameters(), lr=1.0), model=model, max_grad_value=1.0)
