"""Sums that come out with the same bits on every machine.

Libraries sum in whatever order suits the processor, so two machines differ in the last bits. Here the order is fixed: a
vector is taken in blocks of `LANES` elements, each block is added to the lanes as a whole, one IEEE 754 addition for
each lane, and in the end the lanes are added exactly (`math.fsum`). Memory is needed for one block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

LANES: Final = 4096
"""Elements of a block; part of the definition of every sum."""

_NORM_LANES: Final = 1 << 14

Vector = npt.NDArray[np.floating]


def blocks(numel: int) -> Iterator[slice]:
    """The blocks of a vector of `numel` elements, the last may be shorter."""
    for start in range(0, numel, LANES):
        yield slice(start, min(start + LANES, numel))


def difference(first: Vector, second: Vector) -> npt.NDArray[np.float64]:
    """`first` - `second`, each taken to float64 before."""
    return np.subtract(first, second, dtype=np.float64)


class LaneSums:
    """`count` sums at once over vectors of `numel` elements, which come block by block."""

    def __init__(self, count: int, numel: int) -> None:
        self._lanes = np.zeros((count, min(numel, LANES)))

    def add(self, block: npt.NDArray[np.float64]) -> None:
        """Add the next block of each vector, float64 [count, elements] or [elements]."""
        self._lanes[:, : block.shape[-1]] += block

    def totals(self) -> list[float]:
        """The `count` sums over all that was added."""
        return [math.fsum(lanes) for lanes in self._lanes.tolist()]


def total(values: npt.NDArray[np.float64]) -> float:
    """The sum of a 1-D array, whose halves are added as a whole until one element is left; it is written over."""
    while len(values) > 1:
        half = (len(values) + 1) // 2
        folded = values[: len(values) - half]
        np.add(folded, values[half:], folded)
        values = values[:half]
    return float(values[0]) if len(values) else 0.0


def norm(vector: Vector) -> float:
    """The Euclidean norm of a 1-D array, whose elements are rounded to float32: their squares are exact in float64."""
    values = np.ascontiguousarray(vector, np.float32)
    lanes, wide = (np.zeros(min(len(values), _NORM_LANES)) for _ in range(2))
    torch_lanes, torch_wide = torch.from_numpy(lanes), torch.from_numpy(wide)  # only torch squares and adds in one go
    for start in range(0, len(values), _NORM_LANES):
        block = values[start : start + _NORM_LANES]  # a view costs less than one of torch's
        if len(block) < len(wide):
            wide, torch_lanes, torch_wide = wide[: len(block)], torch_lanes[: len(block)], torch_wide[: len(block)]
        np.copyto(wide, block)
        torch_lanes.addcmul_(torch_wide, torch_wide)
    return math.sqrt(total(lanes))


def distance(first: Vector, second: Vector) -> float:
    """The Euclidean norm of the difference of two 1-D arrays; raises `ValueError` if their lengths differ."""
    if first.shape != second.shape:
        raise ValueError(f"arrays of {len(first)} and {len(second)} elements have no difference")
    squares = LaneSums(1, len(first))
    for block in blocks(len(first)):
        squares.add(np.square(difference(first[block], second[block])))
    return math.sqrt(squares.totals()[0])
