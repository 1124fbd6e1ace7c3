"""One rate, learnt from samples some of which are wrong or say little."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minga.network.bandwidth.estimate import BUCKETS, LOW_BUCKETS, ROOM, Estimate


def fed(*rates: float, loaded: bool = True) -> Estimate:
    estimate = Estimate()
    for index, rate in enumerate(rates):
        estimate.add(rate, float(index), loaded=loaded)
    return estimate


def test_the_mean_of_even_noise() -> None:
    rng = random.Random(1)
    value = fed(*(rng.gauss(100.0, 10.0) for _ in range(BUCKETS))).value
    assert value == pytest.approx(103.0, rel=0.03)


@pytest.mark.parametrize("outlier", [1e-9, 1.0, 1e4, 1e15])
@pytest.mark.parametrize("loaded", [True, False])
def test_outliers_do_not_move_it(outlier: float, loaded: bool) -> None:
    estimate = fed(*[100.0] * BUCKETS)
    for _ in range(4):
        estimate.add(outlier, 0.0, loaded=loaded)
    assert estimate.value == 100.0


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_what_is_no_rate_is_ignored(bad: float) -> None:
    assert fed(bad).value is None
    assert fed(100.0, bad, bad, bad).value == 100.0


def test_absurd_rates_are_cut() -> None:
    assert fed(1e300).value == 1e15


def test_loaded_samples_lower_it_and_others_do_not() -> None:
    low, high = fed(*[100.0] * BUCKETS), fed(*[100.0] * BUCKETS)
    for _ in range(BUCKETS):
        low.add(10.0, 0.0, loaded=True)
        high.add(10.0, 0.0, loaded=False)
    assert (low.value, high.value) == (10.0, 100.0)
    assert not high.doubtful


def test_samples_of_either_kind_raise_it() -> None:
    for loaded in (True, False):
        estimate = fed(*[100.0] * BUCKETS)
        for _ in range(BUCKETS):
            estimate.add(1000.0, 0.0, loaded=loaded)
        assert estimate.value == 1000.0


def test_what_is_never_reached_any_more_is_doubted() -> None:
    estimate = fed(*[100.0] * BUCKETS)
    for _ in range(LOW_BUCKETS):
        estimate.add(10.0, 50.0, loaded=False)
    assert estimate.value == ROOM * 10.0
    assert estimate.doubtful
    estimate.keep_since(40.0)
    assert not estimate.doubtful


def test_a_busy_period_outweighs_what_was_before() -> None:
    estimate = fed(*[100.0] * 20)
    estimate.keep_since(1000.0)
    assert estimate.value == 100.0  # nothing newer is known
    estimate.add(10.0, 1000.0, loaded=True)
    estimate.keep_since(1000.0)
    assert estimate.value == 10.0
    assert estimate.newest_s == 1000.0


def test_what_was_learnt_in_vain_is_forgotten() -> None:
    estimate = fed(*[100.0] * 20)
    for _ in range(20):
        estimate.add(10.0, 1000.0, loaded=True)
    assert estimate.value != 100.0
    estimate.forget_since(1000.0)
    assert estimate.value == 100.0
    estimate.forget_since(0.0)
    assert estimate.value is None
    estimate.add(10.0, 2000.0, loaded=False)
    assert estimate.value == 10.0


@given(st.lists(st.tuples(st.floats(), st.booleans()), max_size=80))
def test_any_samples_give_a_rate_between_them(samples: list[tuple[float, bool]]) -> None:
    estimate = Estimate()
    for rate, loaded in samples:
        estimate.add(rate, 0.0, loaded=loaded)
    good = [min(rate, 1e15) for rate, _ in samples if math.isfinite(rate) and rate > 0]
    assert (estimate.value is None) == (not good)
    assert estimate.value is None or 0.999 * min(good) <= estimate.value <= 1.001 * max(good)
