"""Fractions become whole elements."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minga.averaging.apportionment import apportion


@given(st.integers(0, 2**40), st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1.0)), min_size=1, max_size=40))
def test_any_fractions(numel: int, fractions: list[float]) -> None:
    if not any(fractions):
        fractions = [1.0, *fractions]
    sizes = apportion(numel, fractions)
    assert sum(sizes) == numel
    quotas = [numel * fraction / math.fsum(fractions) for fraction in fractions]
    # Never below the quota rounded down, up to the 40 bits that fractions are rounded to.
    assert all(size >= math.floor(quota) - 1 for size, quota in zip(sizes, quotas, strict=True))
    assert not any(size for size, fraction in zip(sizes, fractions, strict=True) if fraction == 0.0)
    ranked = sorted(range(len(sizes)), key=lambda index: fractions[index])
    assert all(sizes[a] <= sizes[b] + 1 for a, b in itertools.pairwise(ranked))
    assert apportion(numel, tuple(fractions)) == sizes


def test_allocate() -> None:
    assert apportion(10, (1, 1, 1)) == (4, 3, 3)
    assert apportion(0, (1, 2)) == (0, 0)
    assert apportion(10**15 + 1, (0.5, 0.5)) == (5 * 10**14 + 1, 5 * 10**14)
    assert sum(apportion(2**62 + 3, [0.1] * 333)) == 2**62 + 3
    for fractions in ((), (0.0, 0.0), (-1.0, 2.0), (math.nan, 1.0), (math.inf, 1.0)):
        with pytest.raises(ValueError, match="fractions"):
            apportion(10, fractions)
