"""The geometric median of the rows (robust federated averaging, RFA: Pillutla, Kakade, Harchaoui 2022)."""

from __future__ import annotations

from typing import ClassVar, Final

from minga.security.robust.huber import central_gram, geometric_median
from minga.security.robust.interface import Aggregate, Aggregator
from minga.security.robust.rows import Rows
from minga.security.robust.weighted_sum import double_sum

_TOLERANCE: Final = 1e-6


class GeometricMedian(Aggregator[Aggregate]):
    """The minimiser of sum_i w_i ||x_i - v||, by Weiszfeld's iteration with 1 / max(||x_i - v||, s) for weights.

    The smoothing s is `smoothing` times the distance at which half of the weight lies from the most central row.
    """

    name: ClassVar[str] = "geometric_median"

    def __init__(self, smoothing: float = 1e-3) -> None:
        """Smooth within a share, above 0 and at most 1, of the spread."""
        if not 0 < smoothing <= 1:
            raise ValueError(f"smoothing is above 0 and at most 1, not {smoothing}")
        self.smoothing = smoothing

    def _aggregate(self, rows: Rows) -> Aggregate:
        weights = rows.weights / rows.weights.sum()
        gram = central_gram(rows, weights)
        location = geometric_median(gram, weights, self.smoothing, _TOLERANCE)
        value, _ = double_sum(rows, location.coefficients)
        return Aggregate(value)
