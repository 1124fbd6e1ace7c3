"""CenteredClip (Karimireddy, He, Jaggi 2021) as what its iteration tends to: a fixed point that anybody can check.

The value v solves sum_i D_i = 0 with D_i = min(1, tau / ||x_i - v||) (x_i - v): rows within the clipping radius tau
count as they are, farther ones as if they were at that distance. A hostile row is thus worth tau and no more.
Verification (BTARD) tests this equation alone, so it matters that v solves it, and not how it was found. The plain
iteration v <- v + mean_i D_i needs hundreds of steps where many rows are hostile; `geometric_median.py` needs tens, and
none of them reads a row.

**The clipping radius** is a norm on the part that is aggregated: `radius_factor` times the median distance of the rows
to their geometric median, both of which a hostile minority can move only by about as much as the honest rows differ. A
factor of 1 costs nothing where nobody is hostile, and is as robust as any: if 7 of 16 rows collude far away, the value
is off by 1.2 times the distance of honest rows from their mean, as it is with smaller factors; with a factor of 2 by
2.4 times.

**Precision.** Two passes over the rows: for the inner products and for the weighted sum. Both are done in single
precision first. If what that may do to sum_i D_i exceeds `_INEXACTNESS` (the rows are nearly equal compared to
their lengths, or their squares leave the range of float32), both are done in double precision, with the row nearest to
v as the origin. In the end, v itself is rounded to float32. Each D_i moves by at most as much as v does, so errors of v
count once for each row in the residual.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import torch

from minga.security.robust.geometric_median import (
    MOST_ITERATIONS,
    Location,
    geometric_median,
    huber_location,
    median,
)
from minga.security.robust.interface import Aggregate, Aggregator
from minga.security.robust.rows import (
    SINGLE_ROUNDING,
    Gram,
    Rows,
    double_sum,
    ordered_sum,
    single_sum,
)

_INEXACTNESS: Final = 2.0**-15
"""Share of tau by which the inexactness of distances and sums may shift the mean of D_i."""
_MOST_MOVES: Final = 3
_MEDIAN_SMOOTHING: Final = 1e-2
_MEDIAN_TOLERANCE: Final = 1e-3


class CenteredClip(Aggregator):
    """The fixed point of CenteredClip, with a clipping radius measured on the rows."""

    name: ClassVar[str] = "centered_clip"

    def __init__(self, *, radius_factor: float = 1.0) -> None:
        """Clip at `radius_factor` > 0 times the median distance of the rows to their geometric median.

        Raises `ValueError` for a factor that is not positive and finite.
        """
        if not 0 < radius_factor < math.inf:
            raise ValueError(f"radius_factor is positive and finite, not {radius_factor}")
        self.radius_factor = radius_factor

    def _aggregate(self, rows: Rows) -> Aggregate:
        solution, value, rounding = self._in_single(rows) or self._in_double(rows)
        left = solution.location.residual_norm + solution.error + rounding
        return Aggregate(value, solution.clip_radius, len(rows) * left)

    def limits(self, rows: Sequence[torch.Tensor]) -> tuple[float, float]:
        """By products in double precision and in order; what single precision may have left is allowed for."""
        arranged = Rows(rows)
        gram = Gram.double(arranged, in_order=True)
        solution = self._solve_in_double(arranged, gram, in_order=True)
        location, radius = solution.location, solution.clip_radius
        in_single = _residual_error(gram.as_single(arranged), location, radius)
        left = min(in_single + _rounding(gram, location), _INEXACTNESS * radius)
        return radius, len(arranged) * (location.residual_norm + left)

    def _in_single(self, rows: Rows) -> tuple[_Solution, torch.Tensor, float] | None:
        """The solution, its value and a bound of how that is rounded; None if single precision is not enough."""
        gram = Gram.single(rows)
        if not gram.is_finite:
            return None
        solution = self._solve(gram)
        rounding = _rounding(gram, solution.location)
        is_exact = solution.error + rounding <= _INEXACTNESS * solution.clip_radius
        if not is_exact or solution.location.iterations == MOST_ITERATIONS:
            return None
        return solution, single_sum(rows, solution.location.coefficients), rounding

    def _in_double(self, rows: Rows) -> tuple[_Solution, torch.Tensor, float]:
        """The same."""
        solution = self._solve_in_double(rows, Gram.double(rows))
        return solution, *double_sum(rows, solution.location.coefficients)

    def _solve_in_double(self, rows: Rows, gram: Gram, *, in_order: bool = False) -> _Solution:
        """With the origin of `gram` moved to the row nearest to the solution until that is near enough."""
        solution = self._solve(gram)
        for _ in range(_MOST_MOVES):
            if solution.error <= _INEXACTNESS * solution.clip_radius:
                break
            nearest = int(np.argmin(solution.location.distances))
            solution = self._solve(Gram.double(rows, nearest, in_order=in_order))
        return solution

    def _solve(self, gram: Gram) -> _Solution:
        centre = geometric_median(gram, _MEDIAN_SMOOTHING, _MEDIAN_TOLERANCE)
        radius = self.radius_factor * median(centre.distances)
        location = huber_location(gram, radius, centre.coefficients) if radius else centre
        return _Solution(location, radius, _residual_error(gram, location, radius))


@dataclass(frozen=True, slots=True)
class _Solution:
    """Where v is, by one set of inner products."""

    location: Location
    clip_radius: float
    error: float
    """How far the errors of the inner products may shift the mean of D_i."""


def _residual_error(gram: Gram, location: Location, radius: float) -> float:
    """D_i has the length min(tau, e_i): an error d of e_i^2 shifts it by at most tau d / (2 max(tau, e_i)^2)."""
    if radius == 0.0:  # half of the rows or more lie at one point, if these products can tell
        return math.inf if gram.centre is None else 0.0
    if radius * radius < gram.smallest_squared:
        return math.inf
    shifts = (
        gram.squared_errors(location.coefficients) * radius / (2 * np.square(np.maximum(location.distances, radius)))
    )
    return float(ordered_sum(1.0 / len(shifts) * shifts))


def _rounding(gram: Gram, location: Location) -> float:
    """How far v moves if the rows are added up in single precision, at most; of products without a centre."""
    lengths = location.coefficients * np.sqrt(np.diag(gram.products))
    return (len(lengths) + 1) * SINGLE_ROUNDING * float(ordered_sum(lengths))
