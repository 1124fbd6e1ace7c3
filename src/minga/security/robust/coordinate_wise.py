"""Aggregators that look at each coordinate by itself (Yin, Chen, Ramchandran, Bartlett 2018)."""

from __future__ import annotations

from typing import ClassVar, Final, Self

import torch

from minga.security.robust.interface import Aggregate, Aggregator
from minga.security.robust.rows import Rows

_TIE: Final = 1e-12
"""Sums of weights that differ by a smaller share are the same, whatever order they were added in."""


class CoordinateMedian(Aggregator[Aggregate]):
    """The weighted median of each coordinate; the middle between both where two values halve the weight."""

    name: ClassVar[str] = "coordinate_median"

    def _aggregate(self, rows: Rows) -> Aggregate:
        rows.require_finite()
        weights = torch.from_numpy(rows.weights)
        value, half = torch.empty(rows.numel), weights.sum() / 2
        for part, block in rows.blocks():
            ordered, order = block.sort(0)
            below = weights[order].cumsum(0)
            low = (below < half * (1 - _TIE)).sum(0, keepdim=True)
            high = (below < half * (1 + _TIE)).sum(0, keepdim=True)
            middle = ordered.gather(0, low).double() + ordered.gather(0, high)
            value[part] = middle[0] / 2
        return Aggregate(value)


class TrimmedMean(Aggregator[Aggregate]):
    """The weighted mean of each coordinate without its `hostile` largest and its `hostile` smallest values."""

    name: ClassVar[str] = "trimmed_mean"

    def __init__(self, hostile: int) -> None:
        """Be made for `hostile` >= 0 hostile rows."""
        if hostile < 0:
            raise ValueError(f"hostile is at least 0, not {hostile}")
        self.hostile = hostile

    @classmethod
    def made_for(cls, rows: int, hostile: int) -> Self:
        """Leave at least one row."""
        return cls(max(0, min(hostile, (rows - 1) // 2)))

    @property
    def fewest_rows(self) -> int:
        """One more than are left out."""
        return 2 * self.hostile + 1

    def _aggregate(self, rows: Rows) -> Aggregate:
        rows.require_finite()
        weights, kept = torch.from_numpy(rows.weights), slice(self.hostile, len(rows) - self.hostile)
        value = torch.empty(rows.numel)
        for part, block in rows.blocks():
            ordered, order = block.sort(stable=True, dim=0)
            counted = weights[order[kept]]
            value[part] = (ordered[kept] * counted).sum(0) / counted.sum(0)
        return Aggregate(value)
