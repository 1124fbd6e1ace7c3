"""Who computes gradients: the bound against the published programme, and the choice against every one there is."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from minga.averaging.planning.contributor_choice import StepWork, combined, resting, step_seconds, with_resting
from minga.averaging.solver.division import CleanRates, SwarmRates, usable
from tests.worlds.lower_bound import shortest_round
from tests.worlds.planner_swarms import GBIT, VECTOR, auxiliary, peer, random_swarm, two_sites
from tests.worlds.seeds import soaked


def exhaustive(rates: SwarmRates, work: StepWork) -> float:
    """The shortest step of all 2^n - 1 choices, each by the division that would be executed."""
    senders = [index for index, one in enumerate(rates.peers) if one.sends]
    choices = [rests for count in range(len(senders)) for rests in itertools.combinations(senders, count)]
    return min(step_seconds(with_resting(rates, rests), work) for rests in choices)


def literal(rates: CleanRates) -> float:
    """Vectors per second by the published programme, n^3 rows and all; `rates` in vectors per second, c as given."""
    optimize = pytest.importorskip("scipy.optimize", reason="scipy solves the linear programme")
    count = rates.count
    width = 2 * count * count + 1  # a, g, xi

    def a(i: int, j: int) -> int:
        return i * count + j

    def g(i: int, j: int) -> int:
        return count * count + i * count + j

    rows, limits = [], []

    def row(limit: float, *places: tuple[int, float]) -> None:
        values = np.zeros(width)
        for place, value in places:
            values[place] += value
        rows.append(values)
        limits.append(limit)

    bounds: list[tuple[float, float | None]] = [(0.0, None)] * width
    for i in range(count):
        others = [j for j in range(count) if j != i]
        for j, k in itertools.product(range(count), range(count)):
            if rates.sends[k]:
                row(0.0, (g(i, j), 1.0), (a(k, i), -1.0))
        row(rates.download[i], *((a(j, i), 1.0) for j in others), *((g(j, i), 1.0) for j in others))
        row(rates.upload[i], *((a(i, j), 1.0) for j in others), *((g(i, j), 1.0) for j in others))
        for j in others:
            row(rates.limits[i, j], (a(i, j), 1.0), (g(i, j), 1.0))
            if not rates.aggregates[i]:
                bounds[a(j, i)] = bounds[g(i, j)] = (0.0, 0.0)
        if rates.receives[i]:
            row(0.0, (width - 1, 1.0), *((g(j, i), -1.0) for j in range(count)))
    cost = np.zeros(width)
    cost[-1] = -1.0
    return -float(optimize.linprog(cost, A_ub=np.array(rows), b_ub=limits, bounds=bounds).fun)


def test_the_programme_is_the_published_one() -> None:
    generator = random.Random(21)
    swarms = [random_swarm(generator, generator.randint(2, 5), paths=0.3) for _ in range(30)]
    swarms += [two_sites(size=2), SwarmRates((peer(0.3), peer(0.2), auxiliary(1.0), auxiliary(1.0, receives=True)))]
    for rates in swarms:
        given = usable(rates)
        scaled = usable(SwarmRates(rates.peers, rates.pairs))
        assert VECTOR / shortest_round(given, VECTOR) == pytest.approx(literal(scaled), rel=1e-5)


@pytest.mark.parametrize("overlapped", [soaked(False), True])
def test_the_choice_is_nearly_the_best_of_all(overlapped: bool) -> None:
    generator = random.Random(22)
    rested = 0
    for trial in range(20):
        rates = random_swarm(generator, 3 + trial % 5)
        work = StepWork(0.286 * GBIT, 40.0 * len(rates.peers) * generator.uniform(0.1, 3.0), overlapped)
        rests = resting(rates, work)
        rested += bool(rests)
        shortest_s = exhaustive(rates, work)
        assert step_seconds(with_resting(rates, rests), work) <= shortest_s * (1.03 if rests else 1.06)
    assert rested >= 5


def slow_uploaders(count: int, slow: int) -> SwarmRates:
    """`slow` of the peers compute a little and hardly upload."""
    fast = (peer(1.0, samples_per_second=20.0),) * (count - slow)
    return SwarmRates((*fast, *(peer(0.002, 0.1, samples_per_second=1.0),) * slow))


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize(("count", "slow"), [(6, 1), (6, 2), (40, 5)])
def test_those_whose_upload_slows_everybody_rest(count: int, slow: int, overlapped: bool) -> None:
    rates = slow_uploaders(count, slow)
    work = StepWork(0.286 * GBIT, 1000.0, overlapped)
    rests = resting(rates, work)
    assert rests == tuple(range(count - slow, count))
    assert step_seconds(with_resting(rates, rests), work) < step_seconds(rates, work) / 1.5
    assert all(one.receives and one.aggregates for one in with_resting(rates, rests).peers)


def test_nobody_rests_for_nothing() -> None:
    alike = SwarmRates((peer(0.1, samples_per_second=10.0),) * 6)
    for work in (
        StepWork(0.286 * GBIT, 4096.0),
        StepWork(0.286 * GBIT, 4096.0, overlapped=True),
        StepWork(0.0, 4096.0),
    ):
        assert resting(alike, work) == ()
    assert resting(SwarmRates((peer(0.1),) * 6), StepWork(VECTOR, 10.0)) == ()
    assert resting(SwarmRates((peer(0.1, aggregates=False, samples_per_second=1.0),) * 3), StepWork(VECTOR, 10.0)) == ()
    # A slow upload does not matter when the batch takes longer.
    assert resting(slow_uploaders(6, 2), StepWork(0.001 * GBIT, 1e6)) == ()


def test_peers_that_tell_no_speed_are_left_alone() -> None:
    rates = SwarmRates((*slow_uploaders(6, 1).peers, peer(1.0), auxiliary(1.0, receives=True)))
    assert resting(rates, StepWork(0.286 * GBIT, 1000.0)) == (5,)


def test_steps() -> None:
    assert combined(StepWork(1.0, 100.0), 10.0, 4.0) == pytest.approx(14.0)
    assert combined(StepWork(1.0, 100.0, overlapped=True), 10.0, 4.0) == pytest.approx(10.0)
    assert combined(StepWork(1.0, 100.0), 0.0, 4.0) == math.inf
