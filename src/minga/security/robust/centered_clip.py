"""CenteredClip (Karimireddy, He, Jaggi 2021) as what its iteration tends to: a fixed point that anybody can check.

The value v solves sum_i w_i D_i = 0 with D_i = min(1, tau / ||x_i - v||) (x_i - v): rows within the clipping radius tau
count as they are, farther ones as if they were at that distance. A hostile row is thus worth tau and no more.
Verification (BTARD) tests this equation alone, so it matters that v solves it, and not how it was found. The plain
iteration v <- v + mean_i D_i needs hundreds of steps where many rows are hostile; `geometric_median.py` needs tens, and
none of them reads a row.

**The clipping radius** is a norm on the part that is aggregated. Where none is given it is measured: `radius_factor`
times the median distance of the rows to their geometric median, both of which a hostile minority can move only by
about as much as the honest rows differ. A factor of 1 costs nothing where nobody is hostile, and is as robust as any:
if 7 of 16 rows collude far away, the value is off by 1.2 times the distance of honest rows from their mean, as it is
with smaller factors; with a factor of 2 by 2.4 times.

**Precision.** Two passes over the rows: for the inner products and for the weighted sum. Both are done in single
precision first. If what that may do to sum_i w_i D_i exceeds `_INEXACTNESS` (the rows are nearly equal compared to
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

from minga.averaging.codecs.interface import is_finite
from minga.security.robust.geometric_median import (
    MOST_ITERATIONS,
    Location,
    Numbers,
    geometric_median,
    huber_location,
    weighted_median,
)
from minga.security.robust.interface import Aggregate, Aggregator
from minga.security.robust.rows import (
    SINGLE_ROUNDING,
    Gram,
    RowData,
    Rows,
    double_sum,
    ordered_sum,
    single_sum,
    squared_distances,
)

_INEXACTNESS: Final = 2.0**-15
"""Share of tau by which the inexactness of distances and sums may shift the mean of D_i."""
_MOST_MOVES: Final = 3
_MEDIAN_SMOOTHING: Final = 1e-2
_MEDIAN_TOLERANCE: Final = 1e-3


@dataclass(frozen=True, slots=True)
class ClippedAggregate(Aggregate):
    """What CenteredClip gives, and how it came to it; tau is the one given or measured."""

    dispersion: float
    """Median distance of the rows to their geometric median."""
    clipped_share: float
    """Share of the weight whose rows are farther than tau from the value."""
    iterations: int


class CenteredClip(Aggregator[ClippedAggregate]):
    """The fixed point of CenteredClip, with a clipping radius that is given or measured."""

    name: ClassVar[str] = "centered_clip"

    def __init__(self, clip_radius: float | None = None, *, radius_factor: float = 1.0) -> None:
        """Clip at `clip_radius` > 0, or at `radius_factor` > 0 times the dispersion of the rows if it is None."""
        for what, value in (("clip_radius", clip_radius), ("radius_factor", radius_factor)):
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{what} is positive and finite, not {value}")
        self.clip_radius, self.radius_factor = clip_radius, radius_factor

    def _aggregate(self, rows: Rows) -> ClippedAggregate:
        weights = rows.weights / rows.weights.sum()
        solution, value, rounding = self._in_single(rows, weights) or self._in_double(rows, weights)
        location, radius = solution.location, solution.clip_radius
        return ClippedAggregate(
            value,
            clip_radius=radius,
            dispersion=solution.dispersion,
            clipped_share=float(weights[location.distances > radius].sum()),
            iterations=location.iterations,
            residual_norm=float(rows.weights.sum()) * (location.residual_norm + solution.error + rounding),
        )

    def limits(self, rows: RowData) -> tuple[float, float]:
        """By products in double precision and in order; what single precision may have left is allowed for."""
        arranged = Rows(rows)
        weights, gram = arranged.weights / len(arranged), Gram.double(arranged, in_order=True)
        solution = self._solve_in_double(arranged, weights, gram, in_order=True)
        location, radius = solution.location, solution.clip_radius
        in_single = _residual_error(gram.as_single(arranged), weights, location, radius)
        left = min(in_single + _rounding(gram, location), _INEXACTNESS * radius)
        return radius, len(arranged) * (location.residual_norm + left)

    def _in_single(self, rows: Rows, weights: Numbers) -> tuple[_Solution, torch.Tensor, float] | None:
        """The solution, its value and a bound of how that is rounded; None if single precision is not enough."""
        gram = Gram.single(rows)
        if not gram.is_finite:
            return None
        solution = self._solve(gram, weights)
        rounding = _rounding(gram, solution.location)
        is_exact = solution.error + rounding <= _INEXACTNESS * solution.clip_radius
        if not is_exact or solution.location.iterations == MOST_ITERATIONS:
            return None
        return solution, single_sum(rows, solution.location.coefficients), rounding

    def _in_double(self, rows: Rows, weights: Numbers) -> tuple[_Solution, torch.Tensor, float]:
        """The same."""
        solution = self._solve_in_double(rows, weights, Gram.double(rows))
        return solution, *double_sum(rows, solution.location.coefficients)

    def _solve_in_double(self, rows: Rows, weights: Numbers, gram: Gram, *, in_order: bool = False) -> _Solution:
        """With the origin of `gram` moved to the row nearest to the solution until that is near enough."""
        solution = self._solve(gram, weights)
        for _ in range(_MOST_MOVES):
            if solution.error <= _INEXACTNESS * solution.clip_radius:
                break
            nearest = int(np.argmin(solution.location.distances))
            solution = self._solve(Gram.double(rows, nearest, in_order=in_order), weights)
        return solution

    def _solve(self, gram: Gram, weights: Numbers) -> _Solution:
        median = geometric_median(gram, weights, _MEDIAN_SMOOTHING, _MEDIAN_TOLERANCE)
        dispersion = weighted_median(median.distances, weights)
        radius = self.clip_radius or self.radius_factor * dispersion
        location = huber_location(gram, weights, radius, median.coefficients) if radius else median
        return _Solution(location, dispersion, radius, _residual_error(gram, weights, location, radius))


@dataclass(frozen=True, slots=True)
class _Solution:
    """Where v is, by one set of inner products."""

    location: Location
    dispersion: float
    clip_radius: float
    error: float
    """How far the errors of the inner products may shift the mean of D_i."""


def _residual_error(gram: Gram, weights: Numbers, location: Location, radius: float) -> float:
    """D_i has the length min(tau, e_i): an error d of e_i^2 shifts it by at most tau d / (2 max(tau, e_i)^2)."""
    if radius == 0.0:  # more than half of the weight lies at one point, if these products can tell
        return math.inf if gram.centre is None else 0.0
    if radius * radius < gram.smallest_squared:
        return math.inf
    shifts = (
        gram.squared_errors(location.coefficients) * radius / (2 * np.square(np.maximum(location.distances, radius)))
    )
    return float(ordered_sum(weights * shifts))


def _rounding(gram: Gram, location: Location) -> float:
    """How far v moves if the rows are added up in single precision, at most; of products without a centre."""
    lengths = location.coefficients * np.sqrt(np.diag(gram.products))
    return (len(lengths) + 1) * SINGLE_ROUNDING * float(ordered_sum(lengths))


def residual(
    rows: RowData, value: torch.Tensor, clip_radius: float, weights: Sequence[float] | torch.Tensor | None = None
) -> torch.Tensor:
    """sum_i w_i min(1, tau / ||x_i - value||) (x_i - value), computed in float64, as float64 [numel].

    It is 0 at the fixed point. `value` is float32 [numel] and finite; `clip_radius` is tau > 0. Raises as `aggregate`
    does, and `ValueError` for a wrong value or radius.
    """
    arranged = Rows(rows, weights)
    if not 0 < clip_radius < math.inf:
        raise ValueError(f"clip_radius is positive and finite, not {clip_radius}")
    if value.shape != (arranged.numel,) or value.dtype != torch.float32 or not is_finite(value):
        raise ValueError(
            f"the value is {value.dtype} {tuple(value.shape)}; "
            f"it is to be finite, float32 and of {arranged.numel} elements"
        )
    distances = squared_distances(arranged, value).sqrt_()
    if not bool(distances.isfinite().all()):
        arranged.require_finite()
    factors = torch.from_numpy(arranged.weights) * (clip_radius / distances.clamp(min=clip_radius))
    total = torch.empty(arranged.numel, dtype=torch.float64)
    for part, block in arranged.double_blocks():
        total[part] = factors @ block.sub_(value[part])
    return total
