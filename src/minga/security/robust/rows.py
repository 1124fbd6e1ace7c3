"""The vectors that are to be aggregated: checked, in one order, and read block by block.

Rows stay where they are: a tensor [n, numel], or n separate pieces of memory as they came in. What is computed from
them goes through blocks of coordinates, so that the memory used beside them does not grow with n times numel.

Sums of floats depend on the order of their terms. Rows are therefore taken in an order that depends on their bits
alone (`row_order.py`): the same rows in any order give the same sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from minga.averaging.codecs.interface import is_finite
from minga.averaging.codecs.tensor_bytes import bytes_of, load
from minga.security.robust.row_order import lexicographic_order

RowData = torch.Tensor | Sequence[torch.Tensor | bytes | bytearray | memoryview]
"""float32 rows: a CPU tensor [n, numel], or n tensors [numel] or buffers of little-endian bytes.

A buffer that is read-only or not aligned to four bytes is copied once.
"""

BLOCK_ELEMENTS: Final = 1 << 17
"""Coordinates worked on at once: the blocks of 16 rows take 8 MiB, which stay in the cache that cores share."""

DOUBLE_BLOCK_ELEMENTS: Final = 1 << 15


class NonFiniteRowsError(ValueError):
    """Some rows hold NaN or infinity; `rows` are their indices among those given, in ascending order."""

    def __init__(self, rows: Sequence[int]) -> None:
        self.rows = tuple(sorted(rows))
        super().__init__(f"NaN or infinity in the rows {', '.join(map(str, self.rows))}; only finite rows can be used")


class Rows:
    """n >= 1 float32 rows of equal length with a positive weight each, in lexicographic order."""

    def __init__(self, data: RowData, weights: Sequence[float] | torch.Tensor | None = None) -> None:
        """Check and arrange rows; those of weight 0 are left out unread.

        Raises `ValueError` for anything but float32 CPU rows of one length, for weights that are negative, not finite,
        all zero or not one for each row, and for no rows.
        """
        vectors = _vectors(data)
        self.numel = vectors[0].numel()
        all_weights = _checked_weights(weights, len(vectors))
        kept = [index for index in range(len(vectors)) if all_weights[index] > 0]
        order = lexicographic_order([vectors[index] for index in kept], [all_weights[index] for index in kept])
        self.indices = tuple(kept[place] for place in order)
        """Where each row stood among those given."""
        self.vectors = tuple(vectors[row] for row in self.indices)
        self.weights = all_weights[list(self.indices)]
        """float64 [n], positive."""
        self._matrix = data.detach() if isinstance(data, torch.Tensor) and data.stride(1) == 1 else None

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

    def in_place(self) -> tuple[torch.Tensor, tuple[int, ...]] | None:
        """The tensor [n, numel] that holds the rows and no others, and where in it each is; None if there is none."""
        return None if self._matrix is None or len(self._matrix) > len(self) else (self._matrix, self.indices)

    def require_finite(self) -> None:
        """Raise `NonFiniteRowsError` that names the rows, as they were given, which hold NaN or infinity."""
        wrong = [index for index, vector in zip(self.indices, self.vectors, strict=True) if not is_finite(vector)]
        if wrong:
            raise NonFiniteRowsError(wrong)


def _vectors(data: RowData) -> list[torch.Tensor]:
    if isinstance(data, torch.Tensor):
        if data.dim() != 2:
            raise ValueError(f"rows are a tensor [n, numel] or n vectors, not a tensor {tuple(data.shape)}")
        vectors = list(data.detach().unbind(0))
    else:
        vectors = [_vector(row, number) for number, row in enumerate(data)]
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


def _vector(row: torch.Tensor | bytes | bytearray | memoryview, number: int) -> torch.Tensor:
    if isinstance(row, torch.Tensor):
        return row.detach()
    if not isinstance(row, bytes | bytearray | memoryview):
        raise ValueError(f"row {number} is a {type(row).__name__}, neither a tensor nor a buffer")
    raw = bytes_of(row, writable=False)
    if raw.is_meta or raw.numel() % 4:
        raise ValueError(f"row {number} has {raw.numel()} bytes that are not float32 values")
    return load(raw, torch.float32)


def _checked_weights(weights: Sequence[float] | torch.Tensor | None, count: int) -> npt.NDArray[np.float64]:
    if weights is None:
        return np.ones(count)
    values = np.asarray([float(weight) for weight in weights])
    if values.shape != (count,):
        raise ValueError(f"{len(values)} weights for {count} rows")
    if not (np.isfinite(values).all() and (values >= 0).all() and 0 < values.sum() < np.inf):
        raise ValueError(f"weights are finite, at least 0 and not all 0: {[float(value) for value in values]}")
    return values
