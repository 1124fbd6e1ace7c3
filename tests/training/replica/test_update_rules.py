"""Parameters that rest for some steps, and parameters that are brought back to what they have to be."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from minga.core.errors import ConfigurationError
from minga.core.spec.sections import OptimizerSection
from minga.optim import LARC, LARS, SGD
from minga.training.replica.build_optimizer import build_optimizer
from minga.training.replica.replica import Replica
from tests.worlds.swarm_tools import make_spec

RESTING = 3


class UnitRows:
    """The weight rests for three steps; its rows have the greatest element 1."""

    def frozen(self, step: int) -> frozenset[str]:
        return frozenset({"weight"}) if step < RESTING else frozenset()

    def constrain(self, model: nn.Module, step: int) -> None:
        assert isinstance(model.weight, nn.Parameter)
        model.weight.div_(model.weight.abs().amax(dim=1, keepdim=True))


def replica(rules: UnitRows | None = None, *, momentum: float = 0.9) -> Replica:
    torch.manual_seed(1)
    model = nn.Linear(5, 4)
    (rules or UnitRows()).constrain(model.requires_grad_(False), 0)
    model.requires_grad_()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=momentum, weight_decay=0.1)
    return Replica(make_spec(4), optimizer, model=model, max_grad_norm=1.0, rules=rules or UnitRows())


def weight_of(one: Replica) -> torch.Tensor:
    return one.tensors()["model/weight"].clone()


def mean_of(one: Replica, step: int) -> torch.Tensor:
    return torch.randn(one.vector.numel, generator=torch.Generator().manual_seed(step))


def test_a_frozen_parameter_keeps_its_bits_and_takes_no_momentum() -> None:
    one = replica()
    first = weight_of(one)
    for step in range(1, RESTING + 1):
        one.apply(mean_of(one, step), step)
        assert torch.equal(weight_of(one), first)
        assert "optimizer/weight/momentum_buffer" not in one.tensors()
        assert "optimizer/bias/momentum_buffer" in one.tensors()
    one.apply(mean_of(one, 9), RESTING + 1)
    assert not torch.equal(weight_of(one), first)


def test_a_frozen_gradient_counts_as_zero_and_is_not_part_of_the_clipped_norm() -> None:
    one = replica()
    vector = one.vector.new()
    for parameter in one.vector.parameters():
        parameter.grad = torch.ones_like(parameter)
    assert one.accumulate(vector, 2.0)
    shapes = [parameter.shape for parameter in one.vector.parameters()]
    bias, weight = torch.split(vector[:24], [shape.numel() for shape in shapes])
    assert (weight.tolist(), bias.tolist()) == ([0.0] * 20, [2.0] * 4)
    one.step = RESTING
    for parameter in one.vector.parameters():
        parameter.grad = torch.ones_like(parameter)
    assert one.accumulate(vector, 2.0)
    assert vector[:24].tolist() == [4.0] * 4 + [2.0] * 20


@pytest.mark.parametrize("way", ["apply", "adopt", "inner_step", "step_by"])
def test_parameters_are_constrained_after_each_kind_of_update(way: str) -> None:
    one = replica()
    one.step = RESTING
    vector = mean_of(one, 5)
    if way in ("apply", "adopt"):
        getattr(one, way)(vector, RESTING + 1)
    elif way == "step_by":
        assert one.step_by(vector)
    else:
        one.vector.load_gradients(vector)
        assert one.inner_step()
    assert torch.equal(weight_of(one).abs().amax(dim=1), torch.ones(4))


def test_a_newcomer_goes_on_from_a_state_with_frozen_parameters() -> None:
    old, new = replica(), replica()
    old.apply(mean_of(old, 1), 1)
    new.restore(old.capture())
    for step in range(2, RESTING + 4):
        for one in (old, new):
            one.apply(mean_of(one, step), step)
        assert new.digest() == old.digest()
    assert "optimizer/weight/momentum_buffer" in new.tensors()


def test_rules_that_do_not_fit_the_model_are_refused() -> None:
    class Wrong(UnitRows):
        def frozen(self, step: int) -> frozenset[str]:
            return frozenset({"heavy"})

    one = replica(Wrong())
    with pytest.raises(ConfigurationError, match="no parameter heavy"):
        one.apply(mean_of(one, 1), 1)
    with pytest.raises(ConfigurationError, match="pass model"):
        Replica(make_spec(4), SGD(nn.Linear(2, 2).parameters(), lr=0.1), rules=UnitRows())


def test_a_recipe_says_what_decays() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    everything, _ = build_optimizer(OptimizerSection(name="larc"), model, lambda name, parameter: True)
    assert isinstance(everything, LARC)
    assert [len(group["params"]) for group in everything.param_groups] == [4]
    by_name, _ = build_optimizer(OptimizerSection(name="lars"), model, lambda name, parameter: name == "0.bias")
    assert isinstance(by_name, LARS)
    assert [(len(group["params"]), group["trust_coefficient"]) for group in by_name.param_groups] == [
        (1, 0.001),
        (3, 0.0),
    ]
