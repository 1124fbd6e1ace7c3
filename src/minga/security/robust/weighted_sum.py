"""Weighted sums of rows, in single or in double precision, and exact distances."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from minga.averaging.codecs.interface import FLOAT32_MAX
from minga.security.robust.rows import Rows

_SUM_ELEMENTS: Final = 1 << 21
"""8 MiB of a float32 sum stay in the cache that cores share while the rows stream past."""
_PIECE_ELEMENTS: Final = 1 << 14
SINGLE_ROUNDING: Final = 2.0**-24
DOUBLE_ROUNDING: Final = 2.0**-53


def single_sum(rows: Rows, coefficients: npt.NDArray[np.float64]) -> torch.Tensor:
    """sum_i coefficients[i] * rows[i] as float32 [numel], added up in float32.

    Each element is off by at most (n + 1) 2^-24 sum_i |coefficients[i] rows[i]|, to first order.
    """
    placed = rows.in_place()
    if placed is not None:
        matrix, places = placed
        factors = torch.empty(len(rows))
        factors[list(places)] = torch.from_numpy(coefficients).float()
        return _product(factors, matrix)
    total = torch.empty(rows.numel)
    for start in range(0, rows.numel, _SUM_ELEMENTS):
        part = slice(start, start + _SUM_ELEMENTS)
        torch.mul(rows.vectors[0][part], float(coefficients[0]), out=total[part])
        for vector, coefficient in zip(rows.vectors[1:], coefficients[1:].tolist(), strict=True):
            total[part].add_(vector[part], alpha=coefficient)
    return total


def _product(factors: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """`factors @ matrix`, in pieces: one product of a vector and a matrix runs on a single thread."""
    whole = matrix.shape[1] // _PIECE_ELEMENTS * _PIECE_ELEMENTS
    total = torch.empty(matrix.shape[1])
    if whole:
        pieces = matrix[:, :whole].view(len(matrix), -1, _PIECE_ELEMENTS).transpose(0, 1)
        torch.bmm(factors.expand(len(pieces), 1, -1), pieces, out=total[:whole].view(-1, 1, _PIECE_ELEMENTS))
    torch.mv(matrix[:, whole:].T, factors, out=total[whole:])
    return total


def double_sum(rows: Rows, coefficients: npt.NDArray[np.float64]) -> tuple[torch.Tensor, float]:
    """sum_i coefficients[i] * rows[i] as float32 [numel], added up in float64, and a bound of its error's norm.

    That is of the rounding to float32 and, which counts where terms cancel, of that of the sums. Sums beyond the range
    of float32 become its largest magnitude.
    """
    total, error, lengths = torch.empty(rows.numel), 0.0, torch.zeros(len(rows), dtype=torch.float64)
    factors = torch.from_numpy(coefficients)
    for part, block in rows.double_blocks():
        exact = factors @ block
        lengths += block.square_().sum(1)
        rounded = total[part].copy_(exact.clamp(-FLOAT32_MAX, FLOAT32_MAX))
        error += float(exact.sub_(rounded).square().sum())
    terms = float(factors.abs() @ lengths.sqrt_())
    return total, error**0.5 + (len(rows) + 1) * DOUBLE_ROUNDING * terms


def squared_distances(rows: Rows, value: torch.Tensor) -> torch.Tensor:
    """||rows[i] - value||^2 as float64 [n], added up in float64; `value` is float32 [numel]."""
    total = torch.zeros(len(rows), dtype=torch.float64)
    for part, block in rows.double_blocks():
        total += block.sub_(value[part]).square_().sum(1)
    return total
