"""A few numbers of a long vector, from which peers tell how far apart their vectors are.

Theory of operation. Each number is a sum of a quarter of the elements, with signs that are drawn once for all and are
the same everywhere. The sketch is linear: the sketch of a difference is the difference of the sketches. With random
signs, the squares of its numbers add up to the square of the vector's length on average ("Finding Frequent Items in
Data Streams", Charikar, Chen and Farach-Colton, 2002). With `NUMBERS` of them the length is known to about 13 %. Sums
are in float64: two float32 vectors that differ by rounding only are 1e-7 of their length apart, which sums in float32
would hide.

The elements of each tensor are laid out in rows of `COLUMNS`, in blocks of rows. The signs of an element are those of
its row times those of its column, so that a few thousand signs do for any length. No copy of the whole is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import numpy as np
import torch
from blake3 import blake3
from numpy.typing import NDArray

NUMBERS: Final = 32
"""Numbers of a sketch: `ROW_SIGNS` sums, each over `NUMBERS / ROW_SIGNS` sets of columns."""
ROW_SIGNS: Final = 8
COLUMNS: Final = 4096
BLOCK_ROWS: Final = 128
"""Half a million elements are in float64 at once."""

Sketch = tuple[float, ...]


@torch.no_grad()
def sketch_of(tensors: Iterable[torch.Tensor]) -> Sketch:
    """The sketch of all elements of some tensors: `NUMBERS` numbers, NaN or infinite if an element is."""
    sums, block = np.zeros((ROW_SIGNS, COLUMNS)), 0
    room = np.empty(BLOCK_ROWS * COLUMNS)
    with np.errstate(invalid="ignore", over="ignore"):  # of a model that is broken, which its loss shows
        for tensor in tensors:
            flat = tensor.reshape(-1)
            for start in range(0, flat.numel(), BLOCK_ROWS * COLUMNS):
                piece = flat[start : start + BLOCK_ROWS * COLUMNS]
                rows = math.ceil(piece.numel() / COLUMNS)
                values = room[: rows * COLUMNS]
                values[: piece.numel()] = piece.to("cpu", torch.float32).numpy()
                values[piece.numel() :] = 0.0
                sums += _row_signs(block)[:, :rows] @ values.reshape(rows, COLUMNS)
                block += 1
        folded = (sums * _column_signs()).reshape(ROW_SIGNS, NUMBERS // ROW_SIGNS, -1).sum(axis=2)
    return tuple(float(number) for number in folded.reshape(-1) / math.sqrt(ROW_SIGNS))


def distance(one: Sketch, other: Sketch) -> float:
    """About how far apart two vectors are, by their sketches; infinite if these have other lengths or are broken."""
    if len(one) != len(other):
        return float("inf")
    length = float(np.linalg.norm(np.subtract(one, other)))
    return length if np.isfinite(length) else float("inf")


def length(sketch: Sketch) -> float:
    """About how long a vector is."""
    return distance(sketch, (0.0,) * len(sketch))


@lru_cache(maxsize=512)
def _row_signs(block: int) -> NDArray[np.float64]:
    """Signs [ROW_SIGNS, BLOCK_ROWS] of the rows of a block."""
    return _signs(f"rows {block}", ROW_SIGNS, BLOCK_ROWS)


@lru_cache(maxsize=1)
def _column_signs() -> NDArray[np.float64]:
    return _signs("columns", ROW_SIGNS, COLUMNS)


def _signs(name: str, rows: int, columns: int) -> NDArray[np.float64]:
    digest = blake3(f"minga state sketch 1 {name}".encode()).digest(length=rows * columns // 8)
    bits = np.unpackbits(np.frombuffer(digest, dtype=np.uint8)).reshape(rows, columns)
    return bits.astype(np.float64) * 2.0 - 1.0
