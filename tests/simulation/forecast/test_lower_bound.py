"""The bound on rounds of one level: the same as the published programme says."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from minga.averaging.solver.clean_rates import CleanRates, usable
from minga.averaging.solver.division import SwarmRates
from minga.simulation.forecast.lower_bound import shortest_round
from tests.worlds.planner_swarms import VECTOR, auxiliary, peer, random_swarm, two_sites


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
