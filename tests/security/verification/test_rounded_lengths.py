"""Lengths in few digits: the same, however the squares were added."""

from __future__ import annotations

import math

import pytest
import torch

from minga.security.verification.count_sketch import LENGTH_STEP, SQUARES_ERROR, norm, rounded_length, squares
from minga.security.verification.norm_bound import STEP_GROWTH, StepBound


@pytest.mark.parametrize("numel", [0, 1, 255, 256, 257, 100_003])
@pytest.mark.parametrize("scale", [1e-44, 1e-30, 1e-18, 1.0, 1e17, 1e30])
def test_a_length_is_rounded_down_by_less_than_a_step(numel: int, scale: float) -> None:
    vector = torch.randn(numel, generator=torch.Generator().manual_seed(numel)) * scale
    true = norm(vector.numpy())
    assert rounded_length(vector) <= true < rounded_length(vector) * (1 + LENGTH_STEP) or true == 0.0


def test_sums_in_any_order_are_within_their_error_and_give_the_same_length() -> None:
    generator = torch.Generator().manual_seed(0)
    asked = 0
    for _ in range(300):
        vector = torch.randn(3000, generator=generator) * torch.rand(1, generator=generator)
        true, about = norm(vector.numpy()) ** 2, squares(vector)
        assert about == pytest.approx(true, rel=SQUARES_ERROR / 4)
        shares = (-1.0, -0.5, 0.0, 0.5, 1.0)
        off = [true * (1.0 + share * SQUARES_ERROR * (1 - 1e-9)) for share in shares]
        assert len({rounded_length(vector, each) for each in off}) == 1
        least, most = (math.frexp(math.sqrt(each))[0] * 2 / LENGTH_STEP for each in (off[0], off[-1]))
        asked += math.floor(least) != math.floor(most)
    assert asked  # some were so near to a step that only a sum in a fixed order tells


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, 3e38])
def test_squares_show_numbers_that_are_none_or_too_large(wrong: float) -> None:
    for place in (0, 255, 256, 299):
        vector = torch.ones(300)
        vector[place] = wrong
        assert not math.isfinite(squares(vector))


def test_a_step_is_shortened_to_the_limit_and_no_further() -> None:
    bound = StepBound()
    usual = torch.full((1000,), 0.37)
    for _ in range(3):
        assert bound.shortened(usual) is usual
    length = float(usual.double().norm())
    longer = usual * 3.9
    assert bound.shortened(longer) is longer
    applied = float(bound.shortened(usual * 50).double().norm())
    assert STEP_GROWTH * length * (1 - 2 * LENGTH_STEP) < applied <= STEP_GROWTH * length
    assert max(bound.lengths) <= STEP_GROWTH * length
