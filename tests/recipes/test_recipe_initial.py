"""Initial parameters: equal on every machine for any architecture, and PyTorch's generators left alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from minga.core.errors import ConfigurationError
from minga.recipes import StreamPosition, shuffled
from minga.recipes.initial import EqualDraws

ALICE = StreamPosition("a1" * 32)


def built(seed: int) -> list[torch.Tensor]:
    with EqualDraws(seed):
        model = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Embedding(10, 4), nn.LSTM(4, 4), nn.Linear(4, 4)
        )
        nn.init.trunc_normal_(model[-1].weight, std=0.02)
        free = [torch.randn(5), torch.rand(2, 3), torch.nn.init.orthogonal_(torch.empty(4, 4))]
    return [*(each.detach() for each in model.parameters()), *free]


def test_models_are_equal_whatever_torch_s_generator_says_and_do_not_touch_it() -> None:
    torch.manual_seed(1)
    one, state = built(7), torch.random.get_rng_state()
    torch.manual_seed(2)
    two, other = built(7), built(8)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert not torch.equal(one[0], other[0])
    torch.manual_seed(1)
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(built(7)[0], one[0])


def test_draws_have_the_mean_and_spread_that_were_asked_for() -> None:
    with EqualDraws(0):
        normal = torch.empty(200, 500).normal_(3.0, 0.5)
        uniform = torch.empty(200, 500).uniform_(-1.0, 2.0)
        standard = torch.randn(100_000)
    assert normal.mean().item() == pytest.approx(3.0, abs=0.01)
    assert normal.std().item() == pytest.approx(0.5, rel=0.02)
    assert (uniform.min() >= -1.0) & (uniform.max() < 2.0)
    assert uniform.mean().item() == pytest.approx(0.5, abs=0.02)
    assert standard.std().item() == pytest.approx(1.0, rel=0.02)


def test_other_chance_is_refused() -> None:
    with EqualDraws(0), pytest.raises(NotImplementedError, match="bernoulli"):
        torch.empty(3).bernoulli_()
    with EqualDraws(0), pytest.raises(NotImplementedError, match="randperm"):
        torch.randperm(3)


def test_a_model_without_memory_costs_no_draws() -> None:
    with EqualDraws(0), torch.device("meta"):
        assert nn.Linear(100_000, 100_000).weight.is_meta


def test_every_pass_over_numbered_samples_is_a_permutation() -> None:
    stream = shuffled(10, 3, ALICE, 4)
    numbers = [number for rows, _ in (next(stream) for _ in range(5)) for number in rows.tolist()]
    assert sorted(numbers[:10]) == sorted(numbers[10:]) == list(range(10))
    assert numbers[:10] != numbers[10:]
    again, other = next(shuffled(10, 3, ALICE, 4)), next(shuffled(10, 4, ALICE, 4))
    assert again[0].tolist() == numbers[:4] != other[0].tolist()
    assert next(shuffled(3, 3, ALICE, 8))[0].shape == (8,)
    with pytest.raises(ConfigurationError, match="at least 1"):
        next(shuffled(0, 3, ALICE, 4))
