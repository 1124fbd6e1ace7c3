from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from minga.optim import LAMB


def reference_step(theta, g, m, v, t, lr, betas, eps, wd, clamp):
    """The formula of the module's docstring, one tensor, float64."""
    b1, b2 = betas
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g**2
    r = m / (np.sqrt(v) + eps) + wd * theta
    phi = min(max(math.sqrt(float((theta**2).sum())), 0.0), clamp)
    norm = math.sqrt(float((r**2).sum()))
    trust = 1.0 if phi == 0 or norm == 0 else phi / norm
    debias = math.sqrt(1 - b2**t) / (1 - b1**t)
    return theta - lr * debias * trust * r, m, v


@given(
    seed=st.integers(0, 2**32 - 1),
    lr=st.floats(1e-4, 0.1),
    betas=st.tuples(st.floats(0, 0.99), st.floats(0, 0.999)),
    eps=st.sampled_from([1e-8, 1e-6, 1e-3]),
    wd=st.sampled_from([0.0, 0.01, 0.3]),
    clamp=st.sampled_from([0.5, 2.0, 10_000.0]),
)
def test_equals_the_formula(seed, lr, betas, eps, wd, clamp):
    rng = np.random.default_rng(seed)
    shapes = [(3, 4), (5,), (2, 2, 2), ()]
    start = [rng.normal(size=shape) for shape in shapes]
    start[1] = np.zeros(5)  # norm 0: the trust ratio is 1
    parameters = [nn.Parameter(torch.tensor(value, dtype=torch.float32)) for value in start]
    optimizer = LAMB(parameters, lr=lr, betas=betas, eps=eps, weight_decay=wd, clamp_value=clamp)
    expected = [(value, np.zeros_like(value), np.zeros_like(value)) for value in start]
    for t in range(1, 6):
        for i, parameter in enumerate(parameters):
            g = rng.normal(size=shapes[i]).astype(np.float32)
            parameter.grad = torch.tensor(g)
            expected[i] = reference_step(
                expected[i][0], g.astype(float), *expected[i][1:], t, lr, betas, eps, wd, clamp
            )
            assume(np.linalg.norm(expected[i][0]) > 1e-6)  # at norm 0 the trust ratio jumps: rounding decides
        optimizer.step()
    for parameter, (value, m, v) in zip(parameters, expected, strict=True):
        state = optimizer.state[parameter]
        np.testing.assert_allclose(parameter.detach().numpy(), value, rtol=2e-4, atol=2e-5)
        np.testing.assert_allclose(state["exp_avg"].numpy(), m, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(state["exp_avg_sq"].numpy(), v, rtol=1e-4, atol=1e-5)


def test_zero_gradient_without_decay_changes_nothing():
    parameter = nn.Parameter(torch.ones(4))
    parameter.grad = torch.zeros(4)
    LAMB([parameter], weight_decay=0.0).step()
    assert torch.equal(parameter, torch.ones(4))


def test_parameters_without_gradient_and_late_ones_keep_their_own_count():
    early, late = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer = LAMB([early, late], lr=0.1)
    early.grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(late, torch.ones(3))
    assert late not in optimizer.state
    late.grad = torch.ones(3)
    optimizer.step()
    assert [optimizer.state[p]["step"].item() for p in (early, late)] == [2, 1]
    alone = nn.Parameter(torch.ones(3))
    alone.grad = torch.ones(3)
    LAMB([alone], lr=0.1).step()
    assert torch.equal(late, alone)


def test_bfloat16_parameters_are_updated_in_float32():
    values, gradient = torch.randn(64, 8).bfloat16(), torch.randn(64, 8).bfloat16()
    half, full = nn.Parameter(values.clone()), nn.Parameter(values.float())
    half.grad, full.grad = gradient, gradient.float()
    for parameter in (half, full):
        LAMB([parameter], lr=0.1).step()
    assert half.dtype == torch.bfloat16
    assert torch.equal(half, full.bfloat16())


def test_closure_and_groups():
    parameter, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = LAMB([{"params": [parameter], "lr": 0.0}, {"params": [other], "weight_decay": 0.0}], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = (parameter + other).sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 4.0
    assert torch.equal(parameter, torch.ones(2))
    assert not torch.equal(other, torch.ones(2))


@pytest.mark.parametrize(
    "bad",
    [
        {"lr": -1.0},
        {"lr": math.nan},
        {"betas": (1.0, 0.9)},
        {"betas": (0.9, -0.1)},
        {"eps": -1e-9},
        {"weight_decay": -0.1},
        {"clamp_value": 0.0},
    ],
)
def test_bad_settings(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        LAMB([nn.Parameter(torch.ones(1))], **bad)


def test_sparse_gradients_are_refused():
    embedding = nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse"):
        LAMB(embedding.parameters()).step()
