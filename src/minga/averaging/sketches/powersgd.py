"""PowerSGD: of each large matrix one factor of rank r travels, its rows and its columns in turn.

    even rounds    P = M Q      the mean stands for P Q'; its orthonormal columns are the new left basis
    odd rounds     Q = M' P     the mean stands for P Q'; its orthonormal columns are the new right basis

P and Q are orthonormal where they are the basis, so a round is an orthogonal projection: of the rows of M on the right
basis, or of its columns on the left one. Each mean is the next step of a power iteration: the bases turn towards the
largest singular vectors of the gradients of all peers, and go on from where they were (warm start). Both bases are part
of the shared state. What a projection leaves out of a peer's own gradient, `projection.py` keeps.

The first axis of a tensor is the rows, all others together are the columns. Tensors with one axis travel as they are,
and so do matrices [a, b] with r (a + b) >= a b / ratio. In the first `start` rounds everything does, because bases
change fast then.

A factor takes r a or r b elements: over two rounds as many as PowerSGD with two reduces sends each step, so a round has
half of these, and one round trip.

Source: PowerSGD (Vogels, Karimireddy and Jaggi 2019), in the alternating form that its authors came to later.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from blake3 import blake3

from minga.averaging.codecs.layout import Shape, VectorLayout
from minga.averaging.codecs.tensor_bytes import CACHED_ELEMENTS
from minga.averaging.sketches.interface import Sketch
from minga.core.spec.fields import Real, Section, real, whole

# ---- Orthonormal columns: of length 1, at right angles to one another, equal to the last bit on all machines.
#
# Theory of operation. Modified Gram-Schmidt: each column is divided by its length, and its direction is taken out of
# the columns after it. All of it is in float64, by elementwise operations, which IEEE 754 defines to the last bit.
# Sums over a column are folded: padded with zeros to a power of two, the upper half is added to the lower half until
# one number is left. So neither the processor nor the number of threads chooses an order (compare
# `minga/optim/norms.py`).
#
# A column of which less than `EPSILON` is left depends on those before it, and so does one of zeros: it gives way to a
# public random direction. What is left of the others is accurate to 1e-16 / `EPSILON`, which float32 does not resolve.
# So all columns are orthonormal within the rounding to float32 at the end.


EPSILON: Final = 1e-8

_Rows = npt.NDArray[np.float64]


def orthonormal(columns: torch.Tensor, seed: str) -> torch.Tensor:
    """Float32 [n, r], r <= n, whose first columns span what those of the finite `columns`, float32 [n, r], span.

    `seed` says which random directions come in where these span less than r dimensions.
    """
    rows = columns.numpy().T.astype(np.float64)  # one row for each column, so that it is contiguous
    wanted = np.sqrt(_folded(rows * rows))
    spare = directions(rows.shape[1], seed)
    for place in range(len(rows)):
        length = math.sqrt(_folded(rows[place] * rows[place]))
        while not length > EPSILON * wanted[place]:
            rows[place], wanted[place] = next(spare), 1.0
            _take_out(rows[:place], rows[place : place + 1])
            length = math.sqrt(_folded(rows[place] * rows[place]))
        rows[place] /= length
        _take_out(rows[place : place + 1], rows[place + 1 :])
    return torch.from_numpy(np.ascontiguousarray(rows.T.astype(np.float32)))


def directions(length: int, seed: str) -> Iterator[_Rows]:
    """Public random directions, one after the other: float64 vectors of norm 1."""
    for number in range(1 << 30):
        text = f"minga direction 1\n{seed}\n{number}\n"
        drawn = np.frombuffer(blake3(text.encode()).digest(length=2 * length), dtype="<u2")
        values = drawn.astype(np.float64) * 2.0 - 65535.0  # odd, so never 0
        yield values / math.sqrt(_folded(values * values))


def _take_out(known: _Rows, rows: _Rows) -> None:
    """Make `rows` orthogonal to the orthonormal rows of `known`, in place."""
    for row in known:
        rows -= _folded(rows * row)[:, None] * row


def _folded(rows: _Rows) -> npt.NDArray[np.float64]:
    """The sums over the last axis."""
    size = 1 << (rows.shape[-1] - 1).bit_length()
    lanes = np.zeros((*rows.shape[:-1], size))
    lanes[..., : rows.shape[-1]] = rows
    while size > 1:
        size //= 2
        lanes[..., :size] += lanes[..., size : 2 * size]
    return lanes[..., 0]


# ---- The sketch: which matrices travel as factors, and their bases.


class PowerSGDSettings(Section):
    """What a run may say of its low rank."""

    rank: int = whole(4, 1, 256, "columns of each factor")
    ratio: Real = real(2.0, 1.0, 1000.0, "how many times smaller both factors have to be than the matrix")
    start: int = whole(100, 0, 1_000_000, "rounds at the beginning that average whole gradients")


class FactoredTensor(NamedTuple):
    """One tensor of the vector; with both bases, if it is a matrix that travels as a factor."""

    shape: Shape
    seed: str
    left: torch.Tensor | None
    """Float32 [rows, rank]."""
    right: torch.Tensor | None
    """Float32 [columns, rank]."""

    def own(self, step: int) -> torch.Tensor | None:
        """The basis of the side that the round of `step` averages."""
        return self.left if step % 2 == 0 else self.right

    def other(self, step: int) -> torch.Tensor | None:
        """That of the other side, on which this one is projected."""
        return self.right if step % 2 == 0 else self.left


class PowerSGD(Sketch):
    """Low-rank factors of the matrices of a vector, the two sides in turn; a round of one side has its own layout."""

    Settings = PowerSGDSettings
    name = "powersgd"
    settings: PowerSGDSettings

    def __init__(self, whole: VectorLayout, settings: PowerSGDSettings | None = None) -> None:
        super().__init__(whole, settings)
        sides = [_sides(shape) if _is_low(shape, self.settings) else (0, 0) for shape in whole.shapes]
        lengths = [[side[axis] for side in sides] for axis in (0, 1)]
        self._left, self._right = (_empty(sum(each), self.settings.rank) for each in lengths)
        lefts, rights = torch.split(self._left, lengths[0]), torch.split(self._right, lengths[1])
        self.tensors: list[FactoredTensor] = []
        """Those of the vector, in its order."""
        for number, (shape, left, right) in enumerate(zip(whole.shapes, lefts, rights, strict=True)):
            seed = f"powersgd {whole.shapes_digest} {number}"
            if len(left):
                self.tensors.append(FactoredTensor(shape, seed, left, right))
                for basis in (left, right):
                    basis.copy_(orthonormal(torch.zeros_like(basis), seed))
            else:
                self.tensors.append(FactoredTensor(shape, seed, None, None))

    def part_of(self, fragment: VectorLayout, tensors: Sequence[int]) -> Sketch:
        """See `Sketch`."""
        part = copy(self)
        Sketch.__init__(part, fragment, self.settings)
        part.tensors = [self.tensors[place] for place in tensors]
        return part

    def shapes(self, step: int) -> tuple[int | Shape, ...]:
        """The factors of one side, and all that travels as it is."""
        if step < self.settings.start:
            return self.whole.tensors
        return tuple(each.shape if (own := each.own(step)) is None else tuple(own.shape) for each in self.tensors)

    def part(self, step: int) -> str:
        """Which side it is."""
        if step < self.settings.start:
            return "dense"
        return ("rows", "columns")[step % 2]

    def project(self, vector: torch.Tensor, step: int) -> torch.Tensor:
        """The products of the matrices and the bases of the other side."""
        if step < self.settings.start:
            return vector.clone()
        values = _empty(self.layout(step).total)
        for each, source, target in self._pieces(vector, values, step):
            if (basis := each.other(step)) is None:
                target.copy_(source)
            else:
                matrix = source.view(_sides(each.shape))
                torch.mm(matrix if step % 2 == 0 else matrix.T, basis, out=target.view(-1, basis.shape[1]))
        return values

    def expand(self, values: torch.Tensor, step: int) -> torch.Tensor:
        """The products of the factors and the bases of the other side, in an order that no machine chooses."""
        if step < self.settings.start:
            return values.clone()
        vector = _empty(self.whole.total)
        for each, target, source in self._pieces(vector, values, step):
            if (basis := each.other(step)) is None:
                target.copy_(source)
            elif step % 2 == 0:
                _multiply(source.view(-1, basis.shape[1]), basis, target)
            else:
                _multiply(basis, source.view(-1, basis.shape[1]), target)
        return vector

    def basis(self) -> Mapping[str, torch.Tensor]:
        """Both bases of all matrices: float32 [sum of rows, rank] and [sum of columns, rank]."""
        return {"left": self._left, "right": self._right} if self._left.numel() else {}

    def absorb(self, mean: torch.Tensor, step: int) -> None:
        """The mean of one side becomes the basis of that side."""
        if step < self.settings.start:
            return
        for each, piece in zip(self.tensors, torch.split(mean, list(self.layout(step).numels)), strict=True):
            if (own := each.own(step)) is not None:
                own.copy_(orthonormal(piece.view(own.shape), each.seed))

    def _pieces(
        self, vector: torch.Tensor, values: torch.Tensor, step: int
    ) -> Iterator[tuple[FactoredTensor, torch.Tensor, torch.Tensor]]:
        """Each tensor, with its elements and its values in the round of `step`."""
        elements = torch.split(vector, list(self.whole.numels))
        yield from zip(self.tensors, elements, torch.split(values, list(self.layout(step).numels)), strict=True)


def _empty(*size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.float32, device="cpu")


def _sides(shape: Shape) -> tuple[int, int]:
    """Rows and columns."""
    return shape[0], math.prod(shape[1:])


def _is_low(shape: Shape, settings: PowerSGDSettings) -> bool:
    if len(shape) < 2:
        return False
    rows, columns = _sides(shape)
    return settings.rank * (rows + columns) * settings.ratio < rows * columns


def _multiply(left: torch.Tensor, right: torch.Tensor, target: torch.Tensor) -> None:
    """Write the product of float32 [a, r] and the transpose of [b, r] to `target`, float32 of a b elements.

    Products of two float32 numbers are exact in float64, and they are added in the order of the columns: equal bits
    everywhere, also where a processor rounds once for both.
    """
    rows, columns = len(left), len(right)
    width = min(columns, CACHED_ELEMENTS)
    height = max(1, CACHED_ELEMENTS // width)
    lefts, rights, result = left.double(), right.T.double().contiguous(), target.view(rows, columns)
    room = torch.empty(height, width, dtype=torch.float64, device="cpu")
    for top in range(0, rows, height):
        for start in range(0, columns, width):
            factor, other = lefts[top : top + height], rights[:, start : start + width]
            sums = room[: len(factor), : other.shape[1]]
            torch.mul(factor[:, :1], other[0], out=sums)
            for column in range(1, len(other)):
                sums.addcmul_(factor[:, column : column + 1], other[column])
            result[top : top + height, start : start + width].copy_(sums)
