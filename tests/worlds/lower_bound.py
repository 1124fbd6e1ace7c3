"""The shortest round that any division of one level can reach: the published linear programme.

Peer i owns the fraction m_i of the result; a_ij is what i sends of its own gradient to owner j, g_ij what owner i
sends on to j, all in vectors for one round of T seconds; u, d, t are rates in vectors per second and c_i says whether
i computes gradients. (The published programme maximises steps per second in terms of rates; divided by that, it reads)

    min T   s.t.   a_ij >= m_j - (1 - c_i)                     every contributor reaches every owner,
                   g_ij <= m_i                                 an owner hands out what it has,
                   m_j + sum_i g_ij >= 1                       each j that receives gets everything,
                   sum_j a_ij + g_ij <= u_i T,   sum_i a_ij + g_ij <= d_j T,   a_ij + g_ij <= t_ij T.

Peers that cannot be reached own nothing. With c given, a_ij = c_i m_j, and about n^2 variables are left.

The division that is executed lets each owner's fraction be the same towards all (see `averaging/solver/flat.py`); this
bound is what it is judged by.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from scipy.optimize import linprog

from minga.averaging.solver.division import CleanRates, FloatArray

SPREAD = 1e5
"""Rates further than this from the usual one are taken for this far, which keeps the arithmetic sound."""


def shortest_round(rates: CleanRates, vector_bytes: float) -> float:
    """Seconds of the shortest round with the senders of `rates`; infinite if there is none."""
    count, usual = rates.count, float(np.median(np.concatenate((rates.upload, rates.download))))
    # The columns are m, then g, then T, which is counted in what a vector takes at the usual rate.
    m, g, t = range(count), count + np.arange(count**2).reshape(count, count), count + count**2
    rows: list[FloatArray] = []
    limits: list[float] = []

    def row(limit: float, *terms: tuple[float, Iterable[int]], rate: float = 0.0) -> None:
        """The terms, each a factor and its columns, are at most `limit` and what `rate` carries in T together."""
        values = np.zeros(t + 1)
        for factor, columns in terms:
            values[list(columns)] += factor
        values[t] = -np.clip(rate / usual, 1.0 / SPREAD, SPREAD) if rate else 0.0
        rows.append(values)
        limits.append(limit)

    for i in m:
        others = [j for j in m if j != i]
        c = float(rates.sends[i])
        row(0.0, (c, others), (1.0, g[i, others]), rate=rates.upload[i])
        row(0.0, (float(np.count_nonzero(rates.sends[others])), [i]), (1.0, g[others, i]), rate=rates.download[i])
        if rates.receives[i]:
            row(-1.0, (-1.0, [i, *g[others, i]]))
        for j in others:
            row(0.0, (1.0, [g[i, j]]), (-1.0, [i]))
            if rates.limited[i, j]:
                row(0.0, (c, [j]), (1.0, [g[i, j]]), rate=rates.limits[i, j])
    most = np.where(rates.aggregates, np.inf, 0.0)
    bounds = [(0.0, each) for each in (*most, *np.repeat(most, count), np.inf)]
    cost = np.zeros(t + 1)
    cost[t] = 1.0
    found = linprog(cost, A_ub=np.array(rows), b_ub=limits, bounds=bounds)
    return float(found.fun) * vector_bytes / usual if found.status == 0 else math.inf
