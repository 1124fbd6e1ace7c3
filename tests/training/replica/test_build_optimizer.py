from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import OptimizerSection
from minga.optim import LAMB, LARS, SGD, AdamW, Muon
from minga.training.replica.build_optimizer import build_optimizer, kept_bytes, schedule


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))


KINDS = {"lamb": LAMB, "adamw": AdamW, "muon": Muon, "sgd": SGD, "lars": LARS}


@pytest.mark.parametrize("name", KINDS)
def test_decay_spares_biases_and_norms(name):
    model = _model()
    settings = OptimizerSection(name=name, learning_rate=0.1, weight_decay=0.3, momentum=0.5)
    optimizer, _ = build_optimizer(settings, model)
    assert type(optimizer) is KINDS[name]
    decayed = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert len(decayed) == len(list(model.parameters()))
    for parameter_name, parameter in model.named_parameters():
        matrix = parameter_name in ("0.weight", "2.weight")
        assert decayed[id(parameter)] == (0.3 if matrix else 0.0), parameter_name


def test_lars_scales_the_gradients_of_matrices_only():
    optimizer, _ = build_optimizer(OptimizerSection(name="lars", momentum=0.8), _model())
    matrices, vectors = optimizer.param_groups
    assert (matrices["trust_coefficient"], vectors["trust_coefficient"]) == (0.001, 0.0)
    assert {group["momentum"] for group in optimizer.param_groups} == {0.8}


@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize("name", KINDS)
def test_moments_take_what_the_optimizer_keeps(name, bits):
    model = nn.Sequential(nn.Linear(300, 400), nn.Linear(400, 30), nn.Linear(30, 70))
    settings = OptimizerSection(name=name, state_bits=bits if name in ("lamb", "adamw", "muon") else 32)
    optimizer, _ = build_optimizer(settings, model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    kept = sum(t.nbytes for state in optimizer.state.values() for key, t in state.items() if key != "step")
    assert kept_bytes(model, settings) == kept


def test_settings_reach_the_optimizer():
    settings = OptimizerSection(betas=(0.8, 0.95), epsilon=1e-5, clamp_value=7.0, warmup_steps=4, total_steps=10)
    optimizer, scheduler = build_optimizer(settings, _model())
    assert isinstance(optimizer, LAMB)
    group = optimizer.param_groups[0]
    assert (group["betas"], group["eps"], group["clamp_value"]) == ((0.8, 0.95), 1e-5, 7.0)
    assert group["lr"] == pytest.approx(settings.learning_rate / 4)
    rates = []
    for _ in range(12):
        rates.append(scheduler.get_last_lr()[0] / settings.learning_rate)
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([1 / 4, 2 / 4, 3 / 4, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0, 0])


def test_schedules():
    for kind, middle, end in (("linear", 0.5, 0.0), ("cosine", 0.5, 0.0), ("constant", 1.0, 1.0)):
        factor = schedule(OptimizerSection(schedule=kind, warmup_steps=10, total_steps=110))
        assert factor(0) == pytest.approx(0.1)
        assert factor(9) == 1.0
        assert factor(60) == pytest.approx(middle)
        assert factor(110) == pytest.approx(end)
        assert factor(10**6) == pytest.approx(end)
    assert schedule(OptimizerSection(schedule="linear", warmup_steps=0, total_steps=1))(0) == 1.0
    assert schedule(OptimizerSection(schedule="linear", warmup_steps=5, total_steps=5))(5) == 0.0


def test_schedules_that_begin_and_end_above_zero():
    rates = {"learning_rate": 4.8, "warmup_learning_rate": 0.3, "final_learning_rate": 0.48}
    for kind, middle in (("linear", 0.55), ("cosine", 0.55)):
        factor = schedule(OptimizerSection(schedule=kind, warmup_steps=10, total_steps=110, **rates))
        assert [factor(step) * 4.8 for step in (0, 4, 9)] == pytest.approx([0.3 + 0.45, 0.3 + 2.25, 4.8])
        assert [factor(60), factor(110), factor(10**6)] == pytest.approx([middle, 0.1, 0.1])


def test_a_warm_start_of_small_steps_leaves_the_schedule_to_the_rounds_after_it():
    """In samples the rate is that of a run whose rounds are all large."""
    tables = {"training": {"strategy": "local", "target_batch_size": 640}}
    tables["optimizer"] = {"learning_rate": 1.0, "warmup_steps": 2, "total_steps": 12}
    rounds = OptimizerSection(**tables["optimizer"])
    warm = {"strategy": {"local": {"synchronous_for": 2560, "synchronous_batch": 64}}}
    spec = RunSpec.from_mapping({"name": "warm", **tables, **warm})
    assert spec.training.strategy_changes[0].from_step == 40
    assert (spec.optimizer.warmup_steps, spec.optimizer.total_steps) == (20, 120)
    _, scheduler = build_optimizer(spec.optimizer, _model(), run=spec)
    cold = schedule(rounds)
    rate = scheduler.lr_lambdas[0]
    assert [rate(step) for step in (0, 9, 19)] == pytest.approx([0.05, 0.5, 1.0]), "each step is a tenth of a round"
    assert [rate(20 + 10 * i) for i in (0, 1, 2)] == pytest.approx([cold(2 + i) for i in (0, 1, 2)])
    assert [rate(40 + i) for i in range(10)] == pytest.approx([cold(4 + i) for i in range(10)])
    plain = RunSpec.from_mapping({"name": "cold", **tables})
    rate = build_optimizer(plain.optimizer, _model(), run=plain)[1].lr_lambdas[0]
    assert [rate(step) for step in range(20)] == [cold(step) for step in range(20)]


def test_the_cosine_has_a_series_of_its_own():
    factor = schedule(OptimizerSection(schedule="cosine", warmup_steps=0, total_steps=1000))
    for step in range(1001):
        assert factor(step) == pytest.approx(0.5 * (1 + math.cos(math.pi * step / 1000)), abs=1e-15)


def test_a_model_without_parameters_is_refused():
    with pytest.raises(ConfigurationError, match="no parameter"):
        build_optimizer(OptimizerSection(), nn.Flatten())
