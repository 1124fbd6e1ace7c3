"""LARS and LARC against their formula in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from minga.optim import LARC, LARS, SGD


@pytest.mark.parametrize(("kind", "settings"), [(LARS, {}), (LARS, {"nesterov": True}), (LARC, {"eps": 1e-3})])
def test_equals_the_formula(kind: type[LARS], settings: dict[str, Any]) -> None:
    generator = np.random.default_rng(5)
    rate, momentum, decay, trust = 0.5, 0.9, 0.01, 0.02
    values = [generator.standard_normal(shape) for shape in ((30, 7), (11,), (9000,), (3, 3))]
    values[1] *= 0  # norm 0: the gradient counts as it is
    parameters = [nn.Parameter(torch.from_numpy(value).float()) for value in values]
    optimizer = kind(parameters, lr=rate, momentum=momentum, weight_decay=decay, trust_coefficient=trust, **settings)
    buffers = [np.zeros_like(value) for value in values]
    for _ in range(5):
        for index, parameter in enumerate(parameters):
            gradient = generator.standard_normal(values[index].shape)
            parameter.grad = torch.from_numpy(gradient).float()
            size, slope = (float(np.linalg.norm(each)) for each in (values[index], gradient))
            scale = trust * size / (slope + decay * size + settings.get("eps", 0.0)) if size > 0 else 1.0
            change = scale * (gradient + decay * values[index])
            buffers[index] = momentum * buffers[index] + change
            values[index] = values[index] - rate * (
                change + momentum * buffers[index] if "nesterov" in settings else buffers[index]
            )
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


def test_larc_leaves_a_tensor_with_a_gradient_of_zero_as_it_is() -> None:
    moved, still = (nn.Parameter(torch.arange(1.0, 13.0).view(3, 4)) for _ in range(2))
    optimizer = LARC([moved, still], lr=0.5, weight_decay=0.1)
    for _ in range(3):
        moved.grad, still.grad = torch.ones(3, 4), torch.zeros(3, 4)
        optimizer.step()
    assert torch.equal(still, torch.arange(1.0, 13.0).view(3, 4))
    assert not torch.equal(moved, still)


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        *((kind, {name: -0.1}) for kind in (SGD, LARS, LARC) for name in ("lr", "momentum", "weight_decay")),
        *((kind, {"nesterov": True, "momentum": 0.0}) for kind in (SGD, LARS)),
        *((kind, {name: -1.0}) for kind in (LARS, LARC) for name in ("trust_coefficient", "eps")),
        (LARC, {"trust_coefficient": 0.0}),
        (LARS, {"lr": math.nan}),
    ],
)
def test_bad_settings(kind: Any, bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        kind([nn.Parameter(torch.ones(1))], **bad)
