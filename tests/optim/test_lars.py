"""LARS against its formula in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from minga.optim import LARS, SGD


@pytest.mark.parametrize("nesterov", [False, True])
def test_equals_the_formula(nesterov: bool) -> None:
    generator = np.random.default_rng(5)
    rate, momentum, decay, trust = 0.5, 0.9, 0.01, 0.02
    values = [generator.standard_normal(shape) for shape in ((30, 7), (11,), (9000,))]
    values[1] *= 0  # norm 0: the gradient counts as it is
    parameters = [nn.Parameter(torch.from_numpy(value).float()) for value in values]
    optimizer = LARS(
        parameters, lr=rate, momentum=momentum, weight_decay=decay, nesterov=nesterov, trust_coefficient=trust
    )
    buffers = [np.zeros_like(value) for value in values]
    for _ in range(5):
        for index, parameter in enumerate(parameters):
            gradient = generator.standard_normal(values[index].shape)
            parameter.grad = torch.from_numpy(gradient).float()
            size, slope = (float(np.linalg.norm(each)) for each in (values[index], gradient))
            scale = trust * size / (slope + decay * size) if size > 0 else 1.0
            change = scale * (gradient + decay * values[index])
            buffers[index] = momentum * buffers[index] + change
            values[index] = values[index] - rate * (change + momentum * buffers[index] if nesterov else buffers[index])
        optimizer.step()
    for parameter, value in zip(parameters, values, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), value, rtol=2e-5, atol=2e-6)


def test_a_group_without_trust_is_that_of_sgd() -> None:
    ours, theirs = (nn.Parameter(torch.ones(40, 3)) for _ in range(2))
    scaled = LARS([ours], lr=0.1, momentum=0.9, weight_decay=0.1, trust_coefficient=0.0)
    plain = SGD([theirs], lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(3):
        ours.grad, theirs.grad = torch.full((40, 3), 0.3), torch.full((40, 3), 0.3)
        scaled.step()
        plain.step()
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", [SGD, LARS])
@pytest.mark.parametrize(
    "bad",
    [
        {"lr": -1.0},
        {"lr": math.nan},
        {"momentum": -0.1},
        {"weight_decay": -0.1},
        {"nesterov": True, "momentum": 0.0},
        {"trust_coefficient": -1.0},
    ],
)
def test_bad_settings(kind: Any, bad: dict[str, Any]) -> None:
    if kind is SGD and "trust_coefficient" in bad:
        pytest.skip("SGD has no such setting")
    with pytest.raises(ValueError, match=next(iter(bad))):
        kind([nn.Parameter(torch.ones(1))], **bad)
