"""The weighted mean: what averaging does without any defence. One hostile row moves it anywhere."""

from __future__ import annotations

from typing import ClassVar

from minga.averaging.codecs.interface import is_finite
from minga.security.robust.interface import Aggregate, Aggregator
from minga.security.robust.rows import Rows, double_sum, single_sum


class Mean(Aggregator[Aggregate]):
    """sum_i w_i x_i / sum_i w_i."""

    name: ClassVar[str] = "mean"
    is_robust: ClassVar[bool] = False

    def _aggregate(self, rows: Rows) -> Aggregate:
        weights = rows.weights / rows.weights.sum()
        value = single_sum(rows, weights)
        if not is_finite(value):  # the sum of large numbers may overflow even so
            rows.require_finite()
            value, _ = double_sum(rows, weights)
        return Aggregate(value)
