"""Krum and Multi-Krum (Blanchard, El Mhamdi, Guerraoui, Stainer 2017): the rows whose neighbours are nearest."""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np

from minga.security.robust.geometric_median import central_gram
from minga.security.robust.interface import Aggregate, Aggregator
from minga.security.robust.rows import Rows, double_sum


class MultiKrum(Aggregator[Aggregate]):
    """The weighted mean of those `chosen` rows that have the smallest scores; Krum for `chosen` = 1.

    The score of a row is the sum of its squared distances to the n - hostile - 2 rows nearest to it. Which rows are
    chosen does not depend on weights.
    """

    name: ClassVar[str] = "multi_krum"

    def __init__(self, hostile: int, chosen: int) -> None:
        """Be made for `hostile` >= 0 hostile rows, and choose `chosen` >= 1."""
        if hostile < 0 or chosen < 1:
            raise ValueError(f"hostile is at least 0 and chosen at least 1, not {hostile} and {chosen}")
        self.hostile, self.chosen = hostile, chosen

    @classmethod
    def made_for(cls, rows: int, hostile: int) -> Self:
        """Choose all that are not hostile."""
        return cls(_bearable(rows, hostile), max(1, rows - hostile))

    @property
    def fewest_rows(self) -> int:
        """2 hostile + 3, as the proof asks for, and enough for all that are chosen to be honest."""
        return max(2 * self.hostile + 3, self.hostile + self.chosen)

    def _aggregate(self, rows: Rows) -> Aggregate:
        distances = central_gram(rows, rows.weights / rows.weights.sum()).squared_distances
        np.fill_diagonal(distances, np.inf)
        scores = np.sort(distances, axis=1)[:, : len(rows) - self.hostile - 2].sum(1)
        coefficients = np.zeros(len(rows))
        best = np.argsort(scores, kind="stable")[: self.chosen]
        coefficients[best] = rows.weights[best] / rows.weights[best].sum()
        value, _ = double_sum(rows, coefficients)
        return Aggregate(value)


class Krum(MultiKrum):
    """The one row with the smallest score."""

    name: ClassVar[str] = "krum"

    def __init__(self, hostile: int) -> None:
        """Be made for `hostile` >= 0 hostile rows."""
        super().__init__(hostile, 1)

    @classmethod
    def made_for(cls, rows: int, hostile: int) -> Self:
        """For fewer hostile ones than half of the rows less one."""
        return cls(_bearable(rows, hostile))


def _bearable(rows: int, hostile: int) -> int:
    return max(0, min(hostile, (rows - 3) // 2))
