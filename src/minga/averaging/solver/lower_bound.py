"""The shortest round that any division of one level can reach: a linear programme, and its variant that chooses.

Peer i owns the fraction m_i of the result; a_ij is what i sends of its own gradient to owner j, g_ij what owner i
sends on to j, all in vectors for one round of T seconds; u, d, t are rates in vectors per second and c_i says whether
i computes gradients. (The published programme maximises steps per second in terms of rates; divided by that, it reads)

    min T   s.t.   a_ij >= m_j - (1 - c_i)                     every contributor reaches every owner,
                   g_ij <= m_i                                 an owner hands out what it has,
                   m_j + sum_i g_ij >= 1                       each j that receives gets everything,
                   sum_j a_ij + g_ij <= u_i T,   sum_i a_ij + g_ij <= d_j T,   a_ij + g_ij <= t_ij T.

Peers that cannot be reached own nothing. With c given, a_ij = c_i m_j, and about n^2 variables are left. With c binary,
the valid row m_i + sum_j a_ij >= c_i (who contributes sends what is not its own) makes the relaxation tight enough to
be solved. What is minimised then is the time of a step, max(B / sum c s, T) if rounds overlap with computing and
B / sum c s + T if not; the convex B / sum c s is approached from below by tangents, until they meet it.

The division that is executed lets each owner's fraction be the same towards all (see `flat.py`); this bound is
what it is judged by. scipy's solvers take half a second to import: import this module only where it is needed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csr_array

from minga.averaging.solver.clean_rates import BoolArray, CleanRates, FloatArray
from minga.averaging.solver.loads import Indices

GAP: Final = 1e-6
MOST_SOLVES: Final = 40
SHORTEST_SOLVE_S: Final = 0.1
"""Whatever the limit, the first solve has so much time."""
TANGENTS: Final = 8
Entry = tuple[Indices, Indices, FloatArray | float]
"""Rows, columns and values of some places of a matrix."""

SPREAD: Final = 1e5
"""Rates further than this from the usual one are taken for this far, which keeps the arithmetic sound."""


@dataclass(frozen=True)
class Choice:
    """Which peers compute gradients, the seconds of a step with that by this programme, and a lower bound on them.

    The two differ only if the solver ran into its time limit.
    """

    computes: tuple[bool, ...]
    step_s: float
    bound_s: float


def shortest_round(rates: CleanRates, vector_bytes: float) -> float:
    """Seconds of the shortest round with the senders of `rates`; infinite if there is none."""
    rows = _Rows(rates, choose=False)
    cost = np.zeros(rows.columns)
    cost[rows.seconds] = 1.0
    matrix, limits = rows.matrix()
    # With 64 peers the simplex method takes two to ten times as long as interior points, and presolving is no gain.
    options = {"presolve": False}
    found = linprog(cost, A_ub=matrix, b_ub=limits, bounds=(0.0, None), method="highs-ipm", options=options)
    return float(found.fun) * vector_bytes / rows.rate if found.status == 0 else math.inf


def best_contributors(
    rates: CleanRates, vector_bytes: float, batch: float, *, overlapped: bool, limit_s: float, relaxed: bool = False
) -> Choice | None:
    """Who of the senders should compute gradients, to make a step of `batch` samples shortest.

    Exact to a relative 1e-6 unless it takes longer than about `limit_s` seconds. `relaxed` allows fractions of a
    peer: a lower bound (`computes` then says who takes part at all). None if no choice reaches everybody.
    """
    rows = _Rows(rates, choose=True)
    unit_s = vector_bytes / rows.rate
    speeds, work = rates.samples_per_second[rows.senders], batch / unit_s
    slowest, total = speeds[speeds > 0.0].min(), speeds.sum()
    for speed in np.geomspace(slowest, total, TANGENTS):
        rows.add_tangent(speeds, float(speed), work, overlapped=overlapped)
    bound = 0.0
    best: tuple[float, BoolArray] = (math.inf, rates.sends)
    until_s = time.monotonic() + limit_s
    for _ in range(MOST_SOLVES):
        left_s = until_s - time.monotonic()
        if left_s <= 0.0 and best[0] < math.inf:
            break
        found = rows.solve(max(left_s, SHORTEST_SOLVE_S), relaxed=relaxed)
        if found is None:
            return None
        x, least = found
        speed = float(speeds @ x[rows.chosen])
        seconds = float(x[rows.seconds])
        step = max(work / speed, seconds) if overlapped else work / speed + seconds
        bound = max(bound, least)
        if step < best[0]:
            computes = np.zeros(rates.count, dtype=np.bool_)
            computes[rows.senders] = x[rows.chosen] > (GAP if relaxed else 0.5)
            best = (step, computes)
        if best[0] - bound <= GAP * best[0] or not rows.add_tangent(speeds, speed, work, overlapped=overlapped):
            break
    return Choice(tuple(best[1].tolist()), best[0] * unit_s, bound * unit_s)


class _Rows:
    """The programme, as rows `matrix @ x <= limits`; rates are counted in the usual one, `rate` bytes per second."""

    def __init__(self, rates: CleanRates, *, choose: bool) -> None:
        self._rates, self._choose = rates, choose
        self.rate = float(np.median(np.concatenate((rates.upload, rates.download))))
        self.senders = np.flatnonzero(rates.sends & (rates.samples_per_second > 0.0) if choose else rates.sends)
        owners = np.flatnonzero(rates.aggregates)
        self._parts: list[tuple[Indices, Indices, FloatArray]] = []
        self._limits: list[FloatArray] = []
        self._height = 0
        self._tangents: set[float] = set()
        # Columns: m of each owner, g, then a and c if they are free, T, and the time of a step.
        self._owned = np.full(rates.count, -1, dtype=np.intp)
        self._owned[owners] = np.arange(len(owners))
        self._give = _pairs(owners, np.flatnonzero(rates.receives))
        self._send = _pairs(self.senders, owners)
        self._give_at = len(owners) + np.arange(len(self._give[0]))
        first = len(owners) + len(self._give_at)
        self._send_at = first + np.arange(len(self._send[0])) if choose else self._owned[self._send[1]]
        first += len(self._send_at) if choose else 0
        self.chosen = first + np.arange(len(self.senders) if choose else 0)
        self.seconds = first + len(self.chosen)
        self.step = self.seconds + 1
        self.columns = self.step + (1 if choose else 0)
        self._flow()
        self._capacities()
        if choose:
            self._conditions()

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
        limited = rates.limited if self._choose else rates.limited & ~self._ample()
        paths = np.flatnonzero(limited)
        place, flat = _places(paths, rates.count**2), limited.ravel()
        give, send = givers * rates.count + takers, senders * rates.count + owners
        limits = rates.limits.ravel()[paths]
        time = (np.arange(len(paths)), np.full(len(paths), self.seconds), np.where(limits, -self._scaled(limits), 0.0))
        entries = [
            (place[at[flat[at]]], to[flat[at]], 1.0) for at, to in ((give, self._give_at), (send, self._send_at))
        ]
        self._add([*entries, time], np.zeros(len(paths)))

    def _ample(self) -> BoolArray:
        """Paths that never bind: an owner's fraction comes from all senders, so it is at most d_j T / senders."""
        senders = np.count_nonzero(self._rates.sends) - self._rates.sends.astype(np.float64)
        with np.errstate(divide="ignore"):
            most = self._rates.download / senders
        return np.asarray(most[:, None] + most[None, :] <= self._rates.limits)

    def _conditions(self) -> None:
        """Each member chosen to compute sends to all owners."""
        (senders, owners), here = self._send, np.arange(len(self._send_at))
        place = _places(self.senders, self._rates.count)
        chosen = self.chosen[place[senders]]
        entries: list[Entry] = [(here, self._owned[owners], 1.0), (here, self._send_at, -1.0), (here, chosen, 1.0)]
        self._add(entries, np.ones(len(here)))
        own = self._owned[self.senders] >= 0
        entries = [
            (place[senders], self._send_at, -1.0),
            (np.flatnonzero(own), self._owned[self.senders[own]], -1.0),
            (np.arange(len(self.senders)), self.chosen, 1.0),
        ]
        self._add(entries, np.zeros(len(self.senders)))
        self._add([(np.zeros(len(self.chosen), np.intp), self.chosen, -1.0)], np.array([-1.0]))

    def add_tangent(self, speeds: FloatArray, speed: float, work: float, *, overlapped: bool) -> bool:
        """Bound the time of a step by the tangent of work / speed at `speed`; False if that is there already."""
        if speed in self._tangents:
            return False
        self._tangents.add(speed)
        row = np.zeros(len(speeds), dtype=np.intp)
        zero = row[:1]
        step, seconds = np.array([self.step]), np.array([self.seconds])
        entries: list[Entry] = [(row, self.chosen, -speeds * work / speed**2), (zero, step, -1.0)]
        if overlapped:
            self._add([(zero, seconds, 1.0), (zero, step, -1.0)], np.zeros(1))
        else:
            entries.append((zero, seconds, 1.0))
        self._add(entries, np.array([-2.0 * work / speed]))
        return True

    def solve(self, limit_s: float, *, relaxed: bool) -> tuple[FloatArray, float] | None:
        """The best point and the lower bound proven, both in units of one vector at the usual rate."""
        matrix, limits = self.matrix()
        cost, whole, upper = np.zeros(self.columns), np.zeros(self.columns), np.full(self.columns, np.inf)
        cost[self.step] = 1.0
        whole[self.chosen] = 0.0 if relaxed else 1.0
        upper[self.chosen] = 1.0
        found = milp(
            cost, integrality=whole, bounds=Bounds(0.0, upper),
            constraints=LinearConstraint(matrix, -np.inf, limits),
            options={"time_limit": limit_s, "mip_rel_gap": GAP / 10.0},
        )  # fmt: skip
        if found.x is None:
            return None
        bound = found.mip_dual_bound
        return found.x, float(found.fun if bound is None else bound)

    def matrix(self) -> tuple[csr_array, FloatArray]:
        """All rows so far."""
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
