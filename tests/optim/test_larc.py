"""LARC against its formula in float64, and the norms of rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from minga.optim import LARC
from minga.optim.norms import row_norms


def test_equals_the_formula() -> None:
    generator = np.random.default_rng(5)
    rate, momentum, decay, trust = 0.3, 0.9, 0.01, 0.001
    values = [generator.standard_normal(shape) for shape in ((30, 7), (11,), (9000,), (3, 3))]
    values[1] *= 0  # norm 0: the gradient counts as it is
    parameters = [nn.Parameter(torch.from_numpy(value).float()) for value in values]
    values = [parameter.detach().double().numpy() for parameter in parameters]
    optimizer = LARC(parameters, lr=rate, momentum=momentum, weight_decay=decay)
    buffers = [np.zeros_like(value) for value in values]
    for _ in range(5):
        for index, parameter in enumerate(parameters):
            parameter.grad = torch.from_numpy(generator.standard_normal(values[index].shape)).float()
            gradient = parameter.grad.double().numpy()
            size, slope = (float(np.linalg.norm(each)) for each in (values[index], gradient))
            change = gradient
            if size > 0:
                change = (gradient + decay * values[index]) * trust * size / (slope + decay * size + 1e-8)
            buffers[index] = momentum * buffers[index] + change
            values[index] = values[index] - rate * buffers[index]
        optimizer.step()
    for parameter, value in zip(parameters, values, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), value, rtol=1e-6, atol=1e-6)


def test_a_tensor_with_a_gradient_of_zero_stays_as_it_is() -> None:
    moved, still = (nn.Parameter(torch.arange(1.0, 13.0).view(3, 4)) for _ in range(2))
    optimizer = LARC([moved, still], lr=0.5, weight_decay=0.1)
    for _ in range(3):
        moved.grad, still.grad = torch.ones(3, 4), torch.zeros(3, 4)
        optimizer.step()
    assert torch.equal(still, torch.arange(1.0, 13.0).view(3, 4))
    assert not torch.equal(moved, still)


@pytest.mark.parametrize(
    "bad", [{"lr": -1.0}, {"momentum": math.nan}, {"weight_decay": -0.1}, {"trust_coefficient": 0.0}, {"eps": -1e-8}]
)
def test_settings_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        LARC([nn.Parameter(torch.ones(1))], **bad)


@pytest.mark.parametrize("shape", [(5, 1), (7, 128), (300, 33)])
def test_row_norms_are_those_of_float64_on_any_number_of_threads(shape: tuple[int, int]) -> None:
    matrix = torch.from_numpy(np.random.default_rng(1).standard_normal(shape)).float()
    expected = np.linalg.norm(matrix.double().numpy(), axis=1, keepdims=True)
    np.testing.assert_allclose(row_norms(matrix).numpy(), expected, rtol=1e-14)
    threads, found = torch.get_num_threads(), []
    try:
        for number in (1, 4):
            torch.set_num_threads(number)
            found.append(row_norms(matrix))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)
