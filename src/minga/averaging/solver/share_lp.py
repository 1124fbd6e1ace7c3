"""The best shares of given ways: a linear programme, its optimum made unique.

Each row is a link and each column a way; the load of a link is linear in the shares x, so that the shortest round is

    min T   s.t.   loads x <= capacities T,   sum x = 1,   x >= 0.

Where one slow link sets T, many shares are optimal. Then the links that bind are held at their time and the rest is
solved again, so that everybody else finishes as early as possible too; last, the largest share is made as small as
all that allows. (Min-max taken in turn, a few turns deep.)

scipy's solvers take half a second to import: import this module only where it is needed.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array, eye_array, hstack, vstack

from minga.averaging.solver.division import BoolArray, CleanRates, FloatArray
from minga.averaging.solver.loads import Loads

TURNS: Final = 4
BINDS: Final = 1e-7
"""A link whose dual value is above this binds in every optimum."""

SLACK: Final = 1e-7
SPREAD: Final = 1e4
"""In the programme a link counts as at most this many times faster or slower than usual: beyond, it never binds or
always does, and the arithmetic stays sound."""


def best_shares(load: Loads, rates: CleanRates, limited: BoolArray) -> FloatArray | None:
    """Shares of the ways whose loads are `load`; `limited` is the (n, n) matrix of paths to respect.

    None if the solver finds none. Takes a few milliseconds for 8 peers, more with more peers.
    """
    ways = len(load.upload)
    paths = np.flatnonzero(limited.ravel())
    place = np.zeros(rates.count**2, dtype=np.intp)
    place[paths] = np.arange(len(paths))
    on_paths = coo_array((load.times, (place[load.path], load.way)), shape=(len(paths), ways))
    matrix = vstack([csr_array(load.upload.T), csr_array(load.download.T), csr_array(on_paths)], format="csr")
    capacity = np.concatenate((rates.upload, rates.download, rates.limits.ravel()[paths]))
    usual = float(np.median(np.concatenate((rates.upload, rates.download))))
    capacity = np.clip(capacity / usual, 1.0 / SPREAD, SPREAD)
    return _in_turn(csr_array(matrix.multiply(1.0 / capacity[:, None])))


def _in_turn(cost: csr_array) -> FloatArray | None:
    """The x that makes the largest entry of `cost @ x` smallest, then the largest of those that may still fall, …"""
    count = cost.shape[1]
    held = np.full(cost.shape[0], np.inf)
    best: FloatArray | None = None
    for _ in range(TURNS):
        solved = _solve(cost, np.isinf(held), held)
        if solved is None:
            return best
        best, level, binds = solved
        held[binds] = level * (1.0 + SLACK)
        if not binds.any() or level <= SLACK or np.isfinite(held).all():
            break
    # What may still move may be as late as in the last turn; within that, the largest share becomes smallest.
    held = np.maximum(np.minimum(held, level * (1.0 + SLACK)), cost @ best * (1.0 + SLACK))
    rows = vstack([cost, eye_array(count)], format="csr")
    even = _solve(rows, np.arange(rows.shape[0]) >= cost.shape[0], np.concatenate((held, np.full(count, np.inf))))
    return best if even is None else even[0]


def _solve(cost: csr_array, free: BoolArray, held: FloatArray) -> tuple[FloatArray, float, BoolArray] | None:
    """Minimise T with `cost @ x <= T` in the free rows, `<= held` in the others: x, T, and the free rows that bind."""
    count = cost.shape[1]
    matrix = hstack([cost, csr_array(-free[:, None].astype(np.float64))], format="csr")
    bounds = np.zeros((count + 1, 2))
    bounds[:, 1] = np.inf
    sums = csr_array(np.append(np.ones(count), 0.0)[None, :])
    found = linprog(
        np.append(np.zeros(count), 1.0), A_ub=matrix, b_ub=np.where(free, 0.0, held), A_eq=sums, b_eq=[1.0],
        bounds=bounds, method="highs-ds",
    )  # fmt: skip
    if found.status != 0:
        return None
    binds = free & (-found.ineqlin.marginals > BINDS)
    return np.clip(found.x[:count], 0.0, 1.0), float(found.x[count]), binds
