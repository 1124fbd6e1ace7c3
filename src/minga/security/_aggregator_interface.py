"""The aggregator seam: one vector out of many, of which some may be hostile.

An aggregator gets the rows of one part, one from each sender, and gives the vector that stands for all of them. The
robust ones bound how far a minority of hostile rows can move it, whatever they hold. `minga.testing` has the suite
that each aggregator must pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import torch

from minga.security._rows import RowData, Rows


@dataclass(frozen=True, slots=True)
class Aggregate:
    """What came out."""

    value: torch.Tensor
    """float32 [numel]."""


AggregateT_co = TypeVar("AggregateT_co", bound=Aggregate, covariant=True)


class Aggregator(ABC, Generic[AggregateT_co]):
    """One way to make one vector of many; without state, so that instances may be shared by threads."""

    name: ClassVar[str]
    is_robust: ClassVar[bool] = True
    """Whether a hostile minority, as large as the aggregator is made for, can move the value only so far."""

    @property
    def fewest_rows(self) -> int:
        """The smallest number of rows of positive weight that it needs."""
        return 1

    def aggregate(self, rows: RowData, weights: Sequence[float] | torch.Tensor | None = None) -> AggregateT_co:
        """Aggregate float32 rows [n, numel] that may lie apart; neither rows nor weights are changed.

        Weights, 1 for each row if not given, are finite and not negative; only their ratios matter. A row of weight 0
        is not read. Rows in another order give the same value, up to the rounding of sums; to the last bit if they lie
        apart. One tensor is faster. Raises `NonFiniteRowsError` that names the
        rows with NaN or infinity, and `ValueError` for rows of another kind or of unequal length, for wrong weights,
        and for fewer rows than `fewest_rows`.
        """
        arranged = Rows(rows, weights)
        if len(arranged) < self.fewest_rows:
            raise ValueError(
                f"{self.name} needs at least {self.fewest_rows} rows of positive weight, not {len(arranged)}"
            )
        return self._aggregate(arranged)

    @abstractmethod
    def _aggregate(self, rows: Rows) -> AggregateT_co: ...

    def __repr__(self) -> str:
        return f"<aggregator {self.name}>"
