"""The vectors that are to be aggregated, in one order, and what is computed from them block by block.

Rows stay where they are, in n pieces of memory as they came in. What is computed from them goes through blocks of
coordinates, so that the memory used beside them does not grow with n times numel.

Sums of floats depend on the order of their terms. Rows are therefore taken in an order that depends on their bits
alone (`lexicographic_order`): the same rows in any order give the same sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import torch

from minga.averaging.codecs.interface import FLOAT32_MAX, is_finite

# ---- An order of vectors that depends on nothing but their bits.


_FIRST_ELEMENTS: Final = 1 << 6
_MOST_ELEMENTS: Final = 1 << 16
"""Copies of a row must not cost a pass over the memory."""


def lexicographic_order(vectors: Sequence[torch.Tensor]) -> list[int]:
    """Indices of float32 `vectors` [numel], ordered by the bits of their first differing element.

    Those that agree in their first 2^16 elements keep their order.
    """
    groups = [list(range(len(vectors)))]
    start, length = 0, _FIRST_ELEMENTS
    while start < min(vectors[0].numel(), _MOST_ELEMENTS) and any(len(group) > 1 for group in groups):
        part = slice(start, start + length)
        groups = [finer for group in groups for finer in _split(group, vectors, part)]
        start, length = part.stop, 4 * length
    return [index for group in groups for index in group]


def _split(group: list[int], vectors: Sequence[torch.Tensor], part: slice) -> list[list[int]]:
    """Ordered groups of those that are equal within `part`."""
    if len(group) == 1:
        return [group]
    pieces = [vectors[index][part].view(torch.int32) for index in group]
    if all(torch.equal(piece, pieces[0]) for piece in pieces[1:]):
        return [group]
    bits = torch.stack(pieces)
    first = int((bits != bits[0]).any(0).nonzero()[0])
    by_value: dict[int, list[int]] = {}
    for index, value in zip(group, bits[:, first].tolist(), strict=True):
        by_value.setdefault(value, []).append(index)
    return [finer for value in sorted(by_value) for finer in _split(by_value[value], vectors, part)]


# ---- The rows: checked, and read block by block.


BLOCK_ELEMENTS: Final = 1 << 17
"""Coordinates worked on at once: the blocks of 16 rows take 8 MiB, which stay in the cache that cores share."""

DOUBLE_BLOCK_ELEMENTS: Final = 1 << 15


class NonFiniteRowsError(ValueError):
    """Some rows hold NaN or infinity; `rows` are their indices among those given, in ascending order."""

    def __init__(self, rows: Sequence[int]) -> None:
        self.rows = tuple(sorted(rows))
        super().__init__(f"NaN or infinity in the rows {', '.join(map(str, self.rows))}; only finite rows can be used")


class Rows:
    """n >= 1 float32 rows of equal length, in lexicographic order."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """Check and arrange rows [numel]. Raises `ValueError` for no rows, and for any but float32 CPU rows of one
        length.
        """
        vectors = _checked(tensors)
        self.numel = vectors[0].numel()
        self.indices = tuple(lexicographic_order(vectors))
        """Where each row stood among those given."""
        self.vectors = tuple(vectors[index] for index in self.indices)

    def __len__(self) -> int:
        return len(self.vectors)

    def blocks(self, elements: int = BLOCK_ELEMENTS) -> Iterator[tuple[slice, torch.Tensor]]:
        """Slices of the coordinates, and a float32 [n, length] with the rows there, valid until the next one.

        The tensor may be written to; the rows stay as they are.
        """
        room = torch.empty(len(self) * min(elements, self.numel))
        for start in range(0, self.numel, elements):
            part = slice(start, min(start + elements, self.numel))
            length = part.stop - part.start
            block = room[: len(self) * length].view(len(self), length)
            torch.stack([vector[part] for vector in self.vectors], out=block)
            yield part, block

    def double_blocks(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """As `blocks`, in float64."""
        room = torch.empty(len(self) * min(DOUBLE_BLOCK_ELEMENTS, self.numel), dtype=torch.float64)
        for part, block in self.blocks(DOUBLE_BLOCK_ELEMENTS):
            yield part, room[: block.numel()].view_as(block).copy_(block)

    def require_finite(self) -> None:
        """Raise `NonFiniteRowsError` that names the rows, as they were given, which hold NaN or infinity."""
        wrong = [index for index, vector in zip(self.indices, self.vectors, strict=True) if not is_finite(vector)]
        if wrong:
            raise NonFiniteRowsError(wrong)


def _checked(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    vectors = [tensor.detach() for tensor in tensors]
    if not vectors:
        raise ValueError("there are no rows to aggregate")
    for number, vector in enumerate(vectors):
        if vector.dim() != 1 or vector.dtype != torch.float32 or vector.device.type != "cpu":
            raise ValueError(
                f"row {number} is {vector.dtype} {tuple(vector.shape)} on {vector.device}; "
                "rows are 1-D, float32 and in CPU memory"
            )
        if vector.numel() != vectors[0].numel():
            raise ValueError(f"row {number} has {vector.numel()} elements, row 0 has {vectors[0].numel()}")
    return vectors


# ---- Inner products of all pairs of rows: after one pass over the memory, distances cost a few hundred operations.
#
# A weighted mean v = sum_j a_j x_j (sum_j a_j = 1) of the rows has, with the unit vector u_i and G_ij = <x_i, x_j>,
#
#     ||x_i - v||^2 = (u_i - a)' G (u_i - a),
#
# so an iteration that only moves weights never looks at the rows again. The same holds with x_i - c in place of x_i,
# for any centre c: differences of rows do not change.
#
# What it costs is cancellation. If every inner product is off by at most g ||x_i|| ||x_j||, a squared distance is off
# by at most g (||x_i|| + sum_j |a_j| ||x_j||)^2: nothing to speak of where the rows are about as long as the distances
# between them, or where a far row has a small weight, but much where all rows are nearly equal. Hence two ways:
#
# * *single*: float32 products of the rows as they are, each over `_SINGLE_ELEMENTS` coordinates, added up in float64.
#   It is fast. The rounding errors of the many short sums are mostly independent of each other, so the whole is better
#   than a single one; see `_SINGLE_ERROR`.
# * *double*: float64 throughout, of differences to a centre if one is given. No float32 over- or underflows there.
#   With the row nearest to v as the centre, ||x_i - c|| <= 2 ||x_i - v||: nothing is left to cancel.
#
# The sums of libraries are in an order that suits the processor, so the last bits of both depend on the machine. Where
# members decide something by the products, each alone, *double* is done with sums *in order*, which takes a few times
# longer and gives the same bits everywhere.


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
        for _, block in rows.blocks():
            products += _products(block, _SINGLE_ELEMENTS)
        return cls(_symmetric(products), 0.0, 0.0).as_single(rows)

    @classmethod
    def double(cls, rows: Rows, centre: int | None = None, *, in_order: bool = False) -> Self:
        """In float64; raises `NonFiniteRowsError` if rows hold NaN or infinity."""
        products = torch.zeros(len(rows), len(rows), dtype=torch.float64)
        for _, block in rows.double_blocks():
            if centre is not None:
                block -= block[centre].clone()
            products += _ordered_products(block) if in_order else _products(block, _DOUBLE_ELEMENTS)
        if not bool(products.isfinite().all()):
            rows.require_finite()
        return cls(_symmetric(products), _DOUBLE_ERROR, 0.0, centre)

    def as_single(self, rows: Rows) -> Self:
        """These products of `rows` with the errors that those in float32 may have."""
        return replace(self, error=_SINGLE_ERROR, smallest_squared=rows.numel * 2.0**-100)

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
        bounds: npt.NDArray[np.float64] = self.error * np.square(norms + ordered_sum(np.abs(coefficients) * norms))
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


def _ordered_products(block: torch.Tensor) -> torch.Tensor:
    """`block @ block.T` of float64, with sums in order."""
    values, products = block.numpy(), np.zeros((len(block), len(block)))
    for row in range(len(block)):
        products[row, row:] = products[row:, row] = ordered_sum(values[row:] * values[row])
    return torch.from_numpy(products)


def ordered_sum(terms: npt.NDArray[np.float64]) -> Any:
    """The float64 sum over the last axis, whose halves are added as a whole until one element is left: each addition is
    one of IEEE 754, so the bits are the same on every machine. It is 0 where there are no elements.
    """
    while (count := terms.shape[-1]) > 1:
        half = count // 2
        folded = terms[..., half:].copy()
        folded[..., :half] += terms[..., :half]
        terms = folded
    return terms.sum(-1)


def _symmetric(products: torch.Tensor) -> npt.NDArray[np.float64]:
    values: npt.NDArray[np.float64] = ((products + products.T) / 2).numpy()
    return values


# ---- Weighted sums of rows, in single or in double precision.


_SUM_ELEMENTS: Final = 1 << 21
"""8 MiB of a float32 sum stay in the cache that cores share while the rows stream past."""
SINGLE_ROUNDING: Final = 2.0**-24
DOUBLE_ROUNDING: Final = 2.0**-53


def single_sum(rows: Rows, coefficients: npt.NDArray[np.float64]) -> torch.Tensor:
    """sum_i coefficients[i] * rows[i] as float32 [numel], added up in float32.

    Each element is off by at most (n + 1) 2^-24 sum_i |coefficients[i] rows[i]|, to first order.
    """
    total = torch.empty(rows.numel)
    for start in range(0, rows.numel, _SUM_ELEMENTS):
        part = slice(start, start + _SUM_ELEMENTS)
        torch.mul(rows.vectors[0][part], float(coefficients[0]), out=total[part])
        for vector, coefficient in zip(rows.vectors[1:], coefficients[1:].tolist(), strict=True):
            total[part].add_(vector[part], alpha=coefficient)
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
