"""The split of the vector: known plans, optimality against a linear programme, determinism, bad input."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minga.averaging._parts import (
    NoAggregatorError,
    allocate,
    fill_in,
    part_sizes,
    shares,
)

Rates = tuple[float | None, ...]

KNOWN_COST: list[tuple[int, Rates, tuple[int, ...]]] = [
    (60, (0.25, 0.25, 0.25, 0.25), (15, 15, 15, 15)),
    (1024, (0.3, 0.5, 0.9), (0, 255, 769)),
    (60, (0.44, 0.33, 0.22), (42, 18, 0)),
    (60, (0.55, 0.44, 0.40), (35, 16, 9)),
    (2**20, (0.3, 0.5, 0.9, 0.6), (0, 169_327, 602_629, 276_620)),
    (2**20, (0, 0.5, 0, 0.6), (0, 428_963, 0, 619_613)),
]
KNOWN_SIZES: list[tuple[int, Rates, int, tuple[int, ...]]] = [
    (60, (0.55, 0.44, 0.40), 10, (41, 19, 0)),
    (60, (0.32, 0.55, 0.44), 10, (0, 40, 20)),
    (2, (0.55, 0.20, 0.44), 10, (1, 0, 1)),
    (1, (0.55, 0.20, 0.44), 10, (1, 0, 0)),
    (100, (None, None), 0, (50, 50)),
    (100, (0, 0, 0, None, None), 0, (0, 0, 0, 50, 50)),
]


def optimal_cost(rates: Rates) -> float:
    """The smallest possible xi of a group of at least three."""
    serving = [rate for rate in rates if rate]
    return max((len(rates) - 2 + len(serving)) / math.fsum(serving), 1.0 / min(serving))


def plan_cost(sizes: tuple[int, ...], rates: Rates) -> float:
    """The xi of given parts."""
    extra, numel = len(rates) - 2, sum(sizes)
    return max((1 + extra * size / numel) / rate for size, rate in zip(sizes, rates, strict=True) if rate)


def instance(generator: random.Random) -> tuple[float, ...]:
    """3 to 19 peers, 30 % clients, bandwidths over three decades."""
    count = generator.randint(3, 19)
    rates = [0.0 if generator.random() < 0.3 else 10 ** generator.uniform(-1, 2) for _ in range(count)]
    rates[generator.randrange(count)] = 10 ** generator.uniform(-1, 2)
    return tuple(rates)


@pytest.mark.parametrize(("numel", "rates", "sizes"), KNOWN_COST)
def test_known_costs(numel: int, rates: Rates, sizes: tuple[int, ...]) -> None:
    ours = plan_cost(part_sizes(numel, rates), rates)
    # The integers cost at most one element more than the known plan.
    assert ours <= plan_cost(sizes, rates) + (len(rates) - 2) / numel / min(rate for rate in rates if rate)
    assert ours >= optimal_cost(rates) * (1 - 1e-12)


@pytest.mark.parametrize(("numel", "rates", "min_part", "sizes"), KNOWN_SIZES)
def test_known_sizes(numel: int, rates: Rates, min_part: int, sizes: tuple[int, ...]) -> None:
    assert part_sizes(numel, rates, min_part=min_part) == sizes


def test_the_closed_form_is_the_optimum_of_the_linear_programme() -> None:
    optimize = pytest.importorskip("scipy.optimize", reason="scipy solves the linear programme")
    generator = random.Random(26)
    for _ in range(1000):
        rates = instance(generator)
        count, serving = len(rates), [rate for rate in rates if rate]
        # Variables: x of each serving peer, then xi. (1 + (n - 2) x_i) / b_i <= xi, sum x >= 1.
        rows = [[0.0] * len(serving) + [-1.0] for _ in serving]
        for index, rate in enumerate(serving):
            rows[index][index] = (count - 2) / rate
        rows.append([-1.0] * len(serving) + [0.0])
        limits = [-1.0 / rate for rate in serving] + [-1.0]
        bounds = [(0.0, 1.0)] * len(serving) + [(0.0, None)]
        cost = [0.0] * len(serving) + [1.0]
        found = optimize.linprog(cost, A_ub=rows, b_ub=limits, bounds=bounds, method="highs")
        assert found.status == 0
        assert optimal_cost(rates) == pytest.approx(found.fun, rel=1e-7)
        fractions = shares(rates)
        ours = max((1 + (count - 2) * x) / rate for x, rate in zip(fractions, rates, strict=True) if rate)
        assert ours == pytest.approx(found.fun, rel=1e-7)


def test_integer_plans_are_as_good_as_the_closed_form() -> None:
    generator = random.Random(5)
    for _ in range(1000):
        rates, numel = instance(generator), generator.randint(1, 10**9)
        sizes = part_sizes(numel, rates)
        assert sum(sizes) == numel
        assert all(size >= 0 for size in sizes)
        assert not any(size for size, rate in zip(sizes, rates, strict=True) if rate == 0)
        slack = (len(rates) - 2) / numel / min(rate for rate in rates if rate)
        best = optimal_cost(rates)
        assert best * (1 - 1e-9) <= plan_cost(sizes, rates) <= best * (1 + 1e-9) + slack


def test_fast_peers_share_by_rate_even_if_a_slow_one_binds() -> None:
    x = shares((0.001, 1.0, 3.0, 3.0))
    assert x[0] == 0
    loads = [(1 + 2 * fraction) / rate for fraction, rate in zip(x[1:], (1.0, 3.0, 3.0), strict=True) if fraction]
    assert max(loads) == pytest.approx(min(loads))
    assert math.fsum(x) == pytest.approx(1.0)


@settings(deadline=None, max_examples=100)
@given(
    st.integers(0, 2**40),
    st.lists(st.one_of(st.none(), st.just(0.0), st.floats(1e-9, 1e18), st.floats(1e5, 1e9)), min_size=1, max_size=40),
    st.integers(0, 10**6),
)
def test_any_group(numel: int, rates: list[float | None], min_part: int) -> None:
    if len(rates) > 1 and all(rate == 0 for rate in rates):
        with pytest.raises(NoAggregatorError, match="at least one peer"):
            part_sizes(numel, rates, min_part=min_part)
        return
    sizes = part_sizes(numel, rates, min_part=min_part)
    assert sum(sizes) == numel
    assert all(size >= 0 for size in sizes)
    assert len(rates) == 1 or not any(size for size, rate in zip(sizes, rates, strict=True) if rate == 0)
    owned = [size for size in sizes if size]
    if owned and max(owned) >= min_part + 1:
        assert min(owned) >= min_part - 1
    assert part_sizes(numel, tuple(rates), min_part=min_part) == sizes


def test_one_and_two_peers() -> None:
    assert part_sizes(7, (5.0,)) == part_sizes(7, (0,)) == part_sizes(7, (None,)) == (7,)
    assert part_sizes(7, (1.0, 100.0)) == (4, 3)
    assert part_sizes(7, (0, 100.0)) == (0, 7)


def test_unknown_rates_are_the_mean_of_the_given_ones() -> None:
    assert fill_in((None, 0, 2.0, 4.0)) == (3.0, 0.0, 2.0, 4.0)
    assert fill_in((None, 0)) == (1.0, 0.0)


def test_order_does_not_matter_but_for_ties() -> None:
    generator = random.Random(3)
    for _ in range(100):
        rates = instance(generator)
        order = list(range(len(rates)))
        generator.shuffle(order)
        moved = part_sizes(10**7, [rates[index] for index in order])
        assert moved == tuple(part_sizes(10**7, rates)[index] for index in order)


def test_allocate() -> None:
    assert allocate(10, (1, 1, 1)) == (4, 3, 3)
    assert allocate(0, (1, 2)) == (0, 0)
    assert allocate(10**15 + 1, (0.5, 0.5)) == (5 * 10**14 + 1, 5 * 10**14)
    assert sum(allocate(2**62 + 3, [0.1] * 333)) == 2**62 + 3
    for fractions in ((), (0.0, 0.0), (-1.0, 2.0), (math.nan, 1.0), (math.inf, 1.0)):
        with pytest.raises(ValueError, match="fractions"):
            allocate(10, fractions)


@pytest.mark.parametrize("rate", [-1.0, math.nan, math.inf, -math.inf, 1e-10, 1e19])
def test_bad_rates(rate: float) -> None:
    for call in (shares, fill_in):
        with pytest.raises(ValueError, match="bandwidth 1"):
            call((1.0, rate, 2.0))


def test_bad_groups_and_sizes() -> None:
    with pytest.raises(ValueError, match="at least one peer"):
        shares(())
    with pytest.raises(NoAggregatorError, match="no client"):
        shares((0, 0, 0))
    for numel, min_part in ((-1, 0), (5, -1)):
        with pytest.raises(ValueError, match="negative"):
            part_sizes(numel, (1.0, 2.0), min_part=min_part)
