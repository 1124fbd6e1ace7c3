"""The sketch tells how far apart two vectors are."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from minga.training.state.sketch import NUMBERS, distance, length, sketch_of


def vector(numel: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(numel).astype(np.float32))


@pytest.mark.parametrize("numel", [1, 100, 4096, 4097, 700_000])
def test_a_sketch_tells_how_long_a_vector_is(numel: int) -> None:
    sketch = sketch_of([vector(numel)])
    assert len(sketch) == NUMBERS
    if numel >= 100:
        assert length(sketch) == pytest.approx(float(vector(numel).norm()), rel=0.5)


def test_last_bits_show_beside_long_vectors() -> None:
    one = vector(300_000) + 100.0
    other = torch.nextafter(one, torch.tensor(math.inf))
    exact = float((other.double() - one.double()).norm())
    assert distance(sketch_of([one]), sketch_of([other])) == pytest.approx(exact, rel=0.5)
    assert distance(sketch_of([one]), sketch_of([one.clone()])) == 0.0


@pytest.mark.parametrize("kind", ["one element", "one row", "one column", "rank one"])
def test_a_difference_of_any_shape_shows(kind: str) -> None:
    difference = torch.zeros(64, 4096)
    if kind == "one element":
        difference[7, 9] = 1.0
    elif kind == "one row":
        difference[7] = 1.0
    elif kind == "one column":
        difference[:, 9] = 1.0
    else:
        difference += 1.0
    found = length(sketch_of([difference.reshape(-1)])) / float(difference.norm())
    assert 0.3 < found < 3.0


def test_the_sketch_is_the_same_everywhere() -> None:
    """Peers of other versions would take each other for diverged."""
    numbers = sketch_of([torch.arange(10_000, dtype=torch.float32)])
    assert [round(each) for each in numbers[:4]] == EXPECTED


EXPECTED = [13662, -28397, -112042, 62942]


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_of_a_broken_model_nothing_is_told(broken: float) -> None:
    values = vector(5000)
    values[4500] = broken
    assert distance(sketch_of([values]), sketch_of([vector(5000)])) == math.inf
    assert distance((1.0, 2.0), (1.0,)) == math.inf
