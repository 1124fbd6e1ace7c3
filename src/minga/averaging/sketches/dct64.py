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
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from minga.averaging.codecs.layout import Shape, VectorLayout
from minga.averaging.sketches.cosine_transform import SIZE, Columns, to_coefficients, to_numbers
from minga.averaging.sketches.interface import Sketch

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
