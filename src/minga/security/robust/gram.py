"""Inner products of all pairs of rows: one pass over the memory, after which distances cost a few hundred operations.

A weighted mean v = sum_j a_j x_j (sum_j a_j = 1) of the rows has, with the unit vector u_i and G_ij = <x_i, x_j>,

    ||x_i - v||^2 = (u_i - a)' G (u_i - a),

so an iteration that only moves weights never looks at the rows again. The same holds with x_i - c in place of x_i, for
any centre c: differences of rows do not change.

What it costs is cancellation. If every inner product is off by at most g ||x_i|| ||x_j||, a squared distance is off by
at most g (||x_i|| + sum_j |a_j| ||x_j||)^2: nothing to speak of where the rows are about as long as the distances
between them, or where a far row has a small weight, but much where all rows are nearly equal. Hence two ways:

* *single*: float32 products of the rows as they are, each over `_SINGLE_ELEMENTS` coordinates, added up in float64.
  It is fast, and reads rows in place where they form one tensor. (How a matrix product rounds may then depend on where
  in the tensor a row stands; rows that lie apart are copied block by block, in lexicographic order.) The rounding
  errors of the many short sums are mostly independent of each other, so the whole is better than a single one; see
  `_SINGLE_ERROR`.
* *double*: float64 throughout, of differences to a centre if one is given. No float32 over- or underflows there. With
  the row nearest to v as the centre, ||x_i - c|| <= 2 ||x_i - v||: nothing is left to cancel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import torch

from minga.security.robust.rows import Rows

_SINGLE_ELEMENTS: Final = 1 << 16
_DOUBLE_ELEMENTS: Final = 1 << 13
_SINGLE_ERROR: Final = 2.0**-17
"""Rows of normal numbers are off by 1e-8 to 4e-7; 7e-6 is reached with constant ones, where rounding errors add up."""
_DOUBLE_ERROR: Final = 2.0**-46


@dataclass(frozen=True, slots=True)
class Gram:
    """Inner products float64 [n, n] of rows, or of their differences to the row `centre`."""

    products: npt.NDArray[np.float64]
    error: float
    """How far a product may be off, by the norms of its two rows."""
    smallest_squared: float
    """Squared distances below this one may have been lost to the range of the numbers."""
    centre: int | None = None

    @classmethod
    def single(cls, rows: Rows) -> Self:
        """In float32; products are not finite where a row holds NaN, infinity, or too large numbers."""
        products = torch.zeros(len(rows), len(rows), dtype=torch.float64)
        placed = rows.in_place()
        if placed is None:
            for _, block in rows.blocks():
                products += _products(block, _SINGLE_ELEMENTS)
        else:
            matrix, places = placed
            products = _products(matrix, _SINGLE_ELEMENTS)[list(places)][:, list(places)]
        return cls(_symmetric(products), _SINGLE_ERROR, rows.numel * 2.0**-100)

    @classmethod
    def double(cls, rows: Rows, centre: int | None = None) -> Self:
        """In float64; raises `NonFiniteRowsError` if rows hold NaN or infinity."""
        products = torch.zeros(len(rows), len(rows), dtype=torch.float64)
        for _, block in rows.double_blocks():
            if centre is not None:
                block -= block[centre].clone()
            products += _products(block, _DOUBLE_ELEMENTS)
        if not bool(products.isfinite().all()):
            rows.require_finite()
        return cls(_symmetric(products), _DOUBLE_ERROR, 0.0, centre)

    @property
    def is_finite(self) -> bool:
        """Whether no row holds NaN, infinity or numbers that are too large for the precision."""
        return bool(np.isfinite(self.products).all())

    @property
    def squared_distances(self) -> npt.NDArray[np.float64]:
        """||x_i - x_j||^2 for all pairs, [n, n]."""
        squared = np.diag(self.products)
        distances: npt.NDArray[np.float64] = np.maximum(squared[:, None] + squared - 2 * self.products, 0.0)
        return distances

    def squared_errors(self, coefficients: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Bounds of the errors of ||x_i - sum_j a_j x_j||^2, [n], for coefficients a that add up to 1."""
        norms = np.sqrt(np.diag(self.products))
        bounds: npt.NDArray[np.float64] = self.error * np.square(norms + np.abs(coefficients) @ norms)
        return bounds


def _products(block: torch.Tensor, elements: int) -> torch.Tensor:
    """`block @ block.T` in float64 of sums over `elements` columns each, these in the precision of `block`."""
    whole = block.shape[1] // elements * elements
    rest = block[:, whole:]
    total = (rest @ rest.T).double()
    if whole:
        pieces = block[:, :whole].view(len(block), -1, elements).transpose(0, 1)
        total += torch.bmm(pieces, pieces.transpose(1, 2)).sum(0, dtype=torch.float64)
    return total


def _symmetric(products: torch.Tensor) -> npt.NDArray[np.float64]:
    values: npt.NDArray[np.float64] = ((products + products.T) / 2).numpy()
    return values
