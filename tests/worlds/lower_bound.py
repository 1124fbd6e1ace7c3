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
from collections.abc import Sequence
from typing import Final

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from minga.averaging.solver.division import CleanRates, FloatArray
from minga.averaging.solver.loads import Indices

Entry = tuple[Indices, Indices, FloatArray | float]
"""Rows, columns and values of some places of a matrix."""

SPREAD: Final = 1e5
"""Rates further than this from the usual one are taken for this far, which keeps the arithmetic sound."""


def shortest_round(rates: CleanRates, vector_bytes: float) -> float:
    """Seconds of the shortest round with the senders of `rates`; infinite if there is none."""
    rows = _Rows(rates)
    cost = np.zeros(rows.columns)
    cost[rows.seconds] = 1.0
    matrix, limits = rows.matrix()
    # With 64 peers the simplex method takes two to ten times as long as interior points, and presolving is no gain.
    options = {"presolve": False}
    found = linprog(cost, A_ub=matrix, b_ub=limits, bounds=(0.0, None), method="highs-ipm", options=options)
    return float(found.fun) * vector_bytes / rows.rate if found.status == 0 else math.inf


class _Rows:
    """The programme, as rows `matrix @ x <= limits`; rates are counted in the usual one, `rate` bytes per second.

    The columns are m of each owner, then g, then T.
    """

    def __init__(self, rates: CleanRates) -> None:
        self._rates = rates
        self.rate = float(np.median(np.concatenate((rates.upload, rates.download))))
        owners = np.flatnonzero(rates.aggregates)
        self._parts: list[tuple[Indices, Indices, FloatArray]] = []
        self._limits: list[FloatArray] = []
        self._height = 0
        self._owned = np.full(rates.count, -1, dtype=np.intp)
        self._owned[owners] = np.arange(len(owners))
        self._give = _pairs(owners, np.flatnonzero(rates.receives))
        self._send = _pairs(np.flatnonzero(rates.sends), owners)
        self._give_at = len(owners) + np.arange(len(self._give[0]))
        self._send_at = self._owned[self._send[1]]
        self.seconds = len(owners) + len(self._give_at)
        self.columns = self.seconds + 1
        self._flow()
        self._capacities()

    def _flow(self) -> None:
        """Owners give what they have; receivers get everything."""
        (givers, takers), here = self._give, np.arange(len(self._give_at))
        self._add([(here, self._give_at, 1.0), (here, self._owned[givers], -1.0)], np.zeros(len(here)))
        receivers = np.flatnonzero(self._rates.receives)
        place = _places(receivers, self._rates.count)
        own = self._owned[receivers] >= 0
        entries: list[Entry] = [
            (place[takers], self._give_at, -1.0),
            (np.flatnonzero(own), self._owned[receivers[own]], -1.0),
        ]
        self._add(entries, np.full(len(receivers), -1.0))

    def _capacities(self) -> None:
        rates, (givers, takers), (senders, owners) = self._rates, self._give, self._send
        everybody = np.arange(rates.count)
        for capacity, give, send in ((rates.upload, givers, senders), (rates.download, takers, owners)):
            time = (everybody, np.full(rates.count, self.seconds), -self._scaled(capacity))
            self._add([(give, self._give_at, 1.0), (send, self._send_at, 1.0), time], np.zeros(rates.count))
        paths = np.flatnonzero(rates.limited)
        place, flat = _places(paths, rates.count**2), rates.limited.ravel()
        give, send = givers * rates.count + takers, senders * rates.count + owners
        limits = rates.limits.ravel()[paths]
        time = (np.arange(len(paths)), np.full(len(paths), self.seconds), np.where(limits, -self._scaled(limits), 0.0))
        entries: list[Entry] = [
            (place[at[flat[at]]], to[flat[at]], 1.0) for at, to in ((give, self._give_at), (send, self._send_at))
        ]
        self._add([*entries, time], np.zeros(len(paths)))

    def matrix(self) -> tuple[csr_array, FloatArray]:
        """All rows."""
        rows, columns, values = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        return csr_array((values, (rows, columns)), shape=(self._height, self.columns)), np.concatenate(self._limits)

    def _add(self, entries: Sequence[Entry], limits: FloatArray) -> None:
        for row, column, value in entries:
            self._parts.append((row + self._height, column, np.broadcast_to(np.float64(value), row.shape)))
        self._limits.append(limits)
        self._height += len(limits)

    def _scaled(self, rates: FloatArray) -> FloatArray:
        return np.clip(rates / self.rate, 1.0 / SPREAD, SPREAD)


def _pairs(from_: Indices, to: Indices) -> tuple[Indices, Indices]:
    """All pairs of two different peers."""
    first, second = np.repeat(from_, len(to)), np.tile(to, len(from_))
    return first[first != second], second[first != second]


def _places(chosen: Indices, count: int) -> Indices:
    places = np.zeros(count, dtype=np.intp)
    places[chosen] = np.arange(len(chosen))
    return places
