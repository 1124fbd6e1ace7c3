"""Columns of length 1 at right angles to one another, equal to the last bit on all machines.

Theory of operation. Modified Gram-Schmidt: each column is divided by its length, and its direction is taken out of the
columns after it. All of it is in float64, by elementwise operations, which IEEE 754 defines to the last bit. Sums over
a column are folded: padded with zeros to a power of two, the upper half is added to the lower half until one number is
left. So neither the processor nor the number of threads chooses an order (compare `minga/optim/norms.py`).

A column of which less than `EPSILON` is left depends on those before it, and so does one of zeros: it gives way to a
public random direction. What is left of the others is accurate to 1e-16 / `EPSILON`, which float32 does not resolve.
So all columns are orthonormal within the rounding to float32 at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from blake3 import blake3

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
