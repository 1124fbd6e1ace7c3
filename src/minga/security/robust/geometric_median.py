"""The point of least Huber loss among n rows, which solves CenteredClip, and its limit, the geometric median."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from minga.security.robust.rows import Gram, ordered_sum

# ---- The point that minimises a Huber loss of the distances to n rows.
#
# It is found among the weighted means of the rows. With h_r(e) = e^2 / 2 for e <= r and r (e - r/2) beyond, the loss
# sum_i h_r(||x_i - v||) is convex, and its gradient vanishes where
#
#     sum_i min(1, r / ||x_i - v||) (x_i - v) = 0.
#
# That is the fixed point of CenteredClip with clipping radius r. For r = infinity it is the mean; for r towards 0 the
# geometric median, smoothed by r. Iteratively reweighted least squares goes there with v <- sum_i c_i x_i / sum_i c_i,
# c_i = min(1, r / ||x_i - v||), which lowers the loss at each step, from wherever it starts; every v on the way is
# a weighted mean of rows, so the iteration needs only their inner products (`rows.py`). Where CenteredClip moves by at
# most r in one iteration, this one leaves a start that is far off at once. The same products give the same bits
# everywhere, because all sums are in a fixed order.


Numbers = npt.NDArray[np.float64]

RESIDUAL_TOLERANCE: Final = 1e-9
MOST_ITERATIONS: Final = 2000


@dataclass(frozen=True, slots=True)
class Location:
    """v = sum_j coefficients[j] x_j, where the iteration ended."""

    coefficients: Numbers
    """[n], adding up to 1."""
    distances: Numbers
    """||x_i - v||, [n]."""
    residual_norm: float
    """The norm of the mean of min(1, r / ||x_i - v||) (x_i - v), at most."""
    iterations: int


def huber_location(gram: Gram, radius: float, start: Numbers, tolerance: float = RESIDUAL_TOLERANCE) -> Location:
    """Iterate from coefficients `start` until the residual is at most `tolerance` times `radius` > 0.

    Ends after `MOST_ITERATIONS` in any case; the residual tells.
    """
    products, coefficients = gram.products, start
    squared_norms = np.diag(products)
    norms = np.sqrt(squared_norms)
    for iteration in range(MOST_ITERATIONS + 1):
        mixed = ordered_sum(products * coefficients)
        distances = np.sqrt(np.maximum(squared_norms - 2 * mixed + ordered_sum(coefficients * mixed), 0.0))
        pulls = 1.0 / len(start) * (radius / np.maximum(distances, radius))
        total = ordered_sum(pulls)
        residual = pulls - total * coefficients
        # Far rows that pull against each other cancel, and then the products are not exact enough to tell.
        inexactness = gram.error * np.square(ordered_sum(np.abs(residual) * norms))
        squared = ordered_sum(residual * ordered_sum(products * residual))
        residual_norm = float(np.sqrt(np.maximum(squared, 0.0) + inexactness))
        if residual_norm <= tolerance * radius or iteration == MOST_ITERATIONS:
            break
        coefficients = pulls / total
    return Location(coefficients, distances, residual_norm, iteration)


def most_central(gram: Gram) -> tuple[int, float]:
    """The row with the smallest median of its distances to all rows, and that median.

    A minority can neither be this row from afar nor make the median larger than that of an honest row.
    """
    medians = [median(row) for row in gram.squared_distances]
    nearest = int(np.argmin(medians))
    return nearest, float(np.sqrt(medians[nearest]))


def geometric_median(gram: Gram, smoothing: float, tolerance: float) -> Location:
    """The geometric median, smoothed within `smoothing` times the distance at which half of the rows lie."""
    row, spread = most_central(gram)
    squared = gram.squared_distances[row]
    if spread == 0.0:  # half of the rows or more lie at one point, which no other row can move it from
        there = squared == 0.0
        return Location(there / there.sum(), np.sqrt(squared), 0.0, 0)
    start = np.zeros(len(squared))
    start[row] = 1.0
    return huber_location(gram, smoothing * spread, start, tolerance)


def median(values: Numbers) -> float:
    """The smallest value such that half of them lie at or below it."""
    return float(np.sort(values)[(len(values) - 1) // 2])
