"""dct64: the discrete cosine transform of blocks of 64 by 64 elements, which loses nothing.

    matrix ── blocks of 64 x 64, the last ones padded with zeros ── DCT-II of columns and rows ──▶ [blocks, 64, 64]
    rest   ── blocks of 64 ────────────────────────────────────────── DCT-II ───────────────────▶ [blocks, 64]

Gradients and momentum have most of their energy in few of these coefficients, so a sparse codec with blocks of 4096
elements chooses better among them than among the elements: that is how DeMo compresses. The coefficients of a block lie
together. Those of matrices come first in the vector of values, so each block of 4096 values from its beginning on is
one block of a matrix.

The first axis of a tensor is the rows, all others together are the columns. Tensors with fewer than 64 of either are
taken in their order, in blocks of 64, because padding would make them many times larger.

Source: DeMo (Peng, Quesnelle and Kingma 2024).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal, localcontext
from functools import cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from minga.averaging.codecs.layout import Shape, VectorLayout
from minga.averaging.sketches.interface import Sketch

# ---- The orthonormal discrete cosine transform of 64 numbers (DCT-II), equal to the last bit on all machines.
#
# Theory of operation. Lee's algorithm halves a transform of n numbers: even coefficients are the transform of the sums
# of opposite numbers, odd ones follow from the transform of their differences, each divided by 2 cos((2 i + 1) pi / 2
# n). Six halvings take 6 additions and 3 multiplications a number, where the matrix takes 64 of each. All are
# elementwise operations in float64, one a call, which IEEE 754 defines to the last bit; a product of matrices would be
# added up in an order that the machine chooses. The cosines are computed with decimals, because libraries of
# mathematics differ in the last bit. The inverse is the transpose of each step, in the reverse order.
#
# Source: B. G. Lee, "A New Algorithm to Compute the Discrete Cosine Transform" (1984).


SIZE: Final = 64

Columns = npt.NDArray[np.float64]

_PI: Final = Decimal("3.14159265358979323846264338327950288419716939937510")
_HALVINGS: Final = (64, 32, 16, 8, 4, 2)


def to_coefficients(numbers: Columns) -> Columns:
    """The transforms of the columns of `numbers`, contiguous float64 [64, m], which are used up."""
    whole, room = numbers, np.empty_like(numbers)
    for size in _HALVINGS:
        half, width = size // 2, whole.shape[1]
        parts = room.reshape(half, 2 * width)
        first, last = whole[:half], whole[: half - 1 : -1]
        np.add(first, last, out=parts[:, :width])
        np.subtract(first, last, out=parts[:, width:])
        parts[:, width:] *= _halved_secants(size)
        whole, room = parts, whole
    for size in reversed(_HALVINGS):
        width = whole.shape[1] // 2
        even, odd = whole[:, :width], whole[:, width:]
        merged = room.reshape(size, width)
        merged[0::2] = even
        merged[-1] = odd[-1]
        np.add(odd[:-1], odd[1:], out=merged[1:-1:2])
        whole, room = merged, whole
    whole *= _scales()
    return whole


def to_numbers(coefficients: Columns) -> Columns:
    """The columns, float64 [64, m], with these contiguous `coefficients`, which are used up."""
    whole, room = coefficients, np.empty_like(coefficients)
    whole *= _scales()
    for size in _HALVINGS:
        width = whole.shape[1]
        parts = room.reshape(size // 2, 2 * width)
        parts[:, :width] = whole[0::2]
        parts[0, width:] = whole[1]
        np.add(whole[1:-2:2], whole[3::2], out=parts[1:, width:])
        whole, room = parts, whole
    for size in reversed(_HALVINGS):
        half, width = size // 2, whole.shape[1] // 2
        sums, differences = whole[:, :width], whole[:, width:]
        differences *= _halved_secants(size)
        merged = room.reshape(size, width)
        np.add(sums, differences, out=merged[:half])
        np.subtract(sums, differences, out=merged[: half - 1 : -1])
        whole, room = merged, whole
    return whole


@cache
def _halved_secants(size: int) -> Columns:
    """1 / (2 cos((2 i + 1) pi / (2 size))) for each i below size / 2, float64 [size / 2, 1]."""
    return np.array([[1.0 / (2.0 * _cosine(2 * i + 1, 2 * size))] for i in range(size // 2)])


@cache
def _scales() -> Columns:
    """What makes the basis orthonormal, float64 [64, 1]."""
    return np.array([[math.sqrt(1 / SIZE)]] + [[math.sqrt(2 / SIZE)]] * (SIZE - 1))


def _cosine(part: int, whole: int) -> float:
    """cos(pi part / whole), for an angle below pi / 2, rounded once: the sum of its Taylor series."""
    with localcontext(prec=50):
        square = (_PI * part / whole) ** 2
        term, total, number = Decimal(1), Decimal(1), 0
        while abs(term) > Decimal("1e-45"):
            number += 2
            term *= -square / (number * (number - 1))
            total += term
        return float(total)


# ---- The sketch: blocks of the tensors of a vector, and their transforms.


_AT_ONCE: Final = 1 << 17
"""Elements that are transformed at once, so that they fit a cache: 1 MiB of float64."""


class _Blocks(NamedTuple):
    """One tensor of the vector as a matrix in blocks: where its elements lie, and where its coefficients."""

    rows: int
    columns: int
    height: int
    """Rows of a block; 64, or 1 for the matrix of one row that any other tensor is."""
    start: int
    values_start: int

    @property
    def grid(self) -> tuple[int, int]:
        """How many blocks lie below and beside one another."""
        return -(-self.rows // self.height), -(-self.columns // SIZE)

    @property
    def shape(self) -> Shape:
        """That of the coefficients."""
        count = math.prod(self.grid)
        return (count, SIZE) if self.height == 1 else (count, SIZE, SIZE)

    def elements_in(self, vector: torch.Tensor) -> npt.NDArray[np.float32]:
        """The tensor [rows, columns]."""
        stop = self.start + self.rows * self.columns
        return vector.detach().numpy()[self.start : stop].reshape(self.rows, self.columns)

    def coefficients_in(self, values: torch.Tensor) -> npt.NDArray[np.float32]:
        """Its coefficients [blocks below, blocks beside, height, 64]."""
        stop = self.values_start + math.prod(self.shape)
        return values.detach().numpy()[self.values_start : stop].reshape(*self.grid, self.height, SIZE)

    def regions(self) -> Iterator[tuple[slice, slice]]:
        """Ranges of blocks below and beside one another, of which each is transformed at once."""
        below, beside = self.grid
        width = max(1, min(beside, _AT_ONCE // (self.height * SIZE)))
        depth = max(1, _AT_ONCE // (self.height * SIZE * width))
        for top in range(0, below, depth):
            for left in range(0, beside, width):
                yield slice(top, min(top + depth, below)), slice(left, min(left + width, beside))


class DCT64(Sketch):
    """Cosine coefficients of the vector's tensors, orthonormal; computed in float64, with equal bits everywhere."""

    name = "dct64"
    needs_residual = False

    def __init__(self, whole: VectorLayout) -> None:
        super().__init__(whole)
        self._tensors: list[_Blocks] = []
        start, starts = 0, []
        for numel in whole.numels:
            starts.append(start)
            start += numel
        stop = 0
        for is_block in (True, False):
            for shape, numel, start in zip(whole.shapes, whole.numels, starts, strict=True):
                if _is_matrix(shape) == is_block:
                    rows = shape[0] if is_block else 1
                    self._tensors.append(_Blocks(rows, numel // rows, SIZE if is_block else 1, start, stop))
                    stop += math.prod(self._tensors[-1].shape)

    def shapes(self, step: int) -> tuple[int | Shape, ...]:  # noqa: ARG002
        """Blocks of matrices, then those of all else."""
        return tuple(each.shape for each in self._tensors)

    def project(self, vector: torch.Tensor, step: int) -> torch.Tensor:
        """The coefficients."""
        values = torch.empty(self.layout(step).total, dtype=torch.float32, device="cpu")
        for each in self._tensors:
            elements, coefficients = each.elements_in(vector), each.coefficients_in(values)
            for below, beside in each.regions():
                target = coefficients[below, beside]
                count, across, height, _ = target.shape
                padded = np.zeros((count * height, across * SIZE))
                source = elements[_times(below, height), _times(beside, SIZE)]
                padded[: source.shape[0], : source.shape[1]] = source
                target[...] = _to_coefficients(padded.reshape(count, height, across, SIZE))
        return values

    def expand(self, values: torch.Tensor, step: int) -> torch.Tensor:  # noqa: ARG002
        """The elements; what lies in the padding is cut off."""
        vector = torch.empty(self.whole.total, dtype=torch.float32, device="cpu")
        for each in self._tensors:
            elements, coefficients = each.elements_in(vector), each.coefficients_in(values)
            for below, beside in each.regions():
                target = elements[_times(below, each.height), _times(beside, SIZE)]
                padded = _to_elements(coefficients[below, beside].astype(np.float64))
                target[...] = padded[: target.shape[0], : target.shape[1]]
        return vector


def _is_matrix(shape: Shape) -> bool:
    return len(shape) > 1 and shape[0] >= SIZE and math.prod(shape[1:]) >= SIZE


def _times(blocks: slice, size: int) -> slice:
    """The rows or columns of a range of blocks."""
    return slice(blocks.start * size, blocks.stop * size)


def _to_coefficients(elements: Columns) -> Columns:
    """From float64 [below, height, beside, 64], which is used up, to [below, beside, height, 64]."""
    below, height, beside, _ = elements.shape
    turned = np.ascontiguousarray(elements.transpose(1, 0, 2, 3)).reshape(height, -1)
    if height == SIZE:
        turned = to_coefficients(turned)
    turned = np.ascontiguousarray(turned.reshape(height, -1, SIZE).transpose(2, 1, 0)).reshape(SIZE, -1)
    return to_coefficients(turned).reshape(SIZE, below, beside, height).transpose(1, 2, 3, 0)


def _to_elements(coefficients: Columns) -> Columns:
    """From float64 [below, beside, height, 64] to the matrix [below height, beside 64]."""
    below, beside, height, _ = coefficients.shape
    turned = to_numbers(np.ascontiguousarray(coefficients.transpose(3, 0, 1, 2)).reshape(SIZE, -1))
    turned = np.ascontiguousarray(turned.reshape(SIZE, -1, height).transpose(2, 1, 0)).reshape(height, -1)
    if height == SIZE:
        turned = to_numbers(turned)
    return turned.reshape(height, below, beside, SIZE).transpose(1, 0, 2, 3).reshape(below * height, -1)
