"""A training state at one step: named tensors in one block of bytes, and a few numbers.

All tensors lie one behind the other in a single flat buffer, each at a multiple of `ALIGNMENT_BYTES`, with zeros in the
gaps. So a state is a byte string with a table of contents. Code that knows nothing about tensors can cut it into
chunks, hash, send and compare it, and each tensor is a view into it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import torch

from minga.averaging.codecs.tensor_bytes import as_bytes
from minga.training.state.scalars import Json

ALIGNMENT_BYTES = 16
"""Enough for every dtype to be viewed in place."""

DTYPES: dict[str, torch.dtype] = {
    "bfloat16": torch.bfloat16,
    "bool": torch.bool,
    "complex64": torch.complex64,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "int8": torch.int8,
    "uint16": torch.uint16,
    "uint32": torch.uint32,
    "uint64": torch.uint64,
    "uint8": torch.uint8,
}
"""The dtypes that a state may hold: those of the safetensors format."""

DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class TensorEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Name, dtype (a key of `DTYPES`) and shape of one tensor of a state."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor's elements, without the gap behind them."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


def padded(size_bytes: int) -> int:
    """`size_bytes` rounded up to the next multiple of `ALIGNMENT_BYTES`."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def layout_bytes(tensors: Sequence[TensorEntry]) -> int:
    """Bytes of the buffer that holds these tensors."""
    return sum(padded(entry.size_bytes) for entry in tensors)


@dataclass(frozen=True, eq=False)
class StateSnapshot:
    """An immutable training state after global step `step`, on the CPU.

    `buffer` is a flat uint8 tensor of `layout_bytes(tensors)` bytes, on the device `meta` if only its size is known;
    `scalars` are JSON values.
    """

    step: int
    tensors: tuple[TensorEntry, ...]
    scalars: dict[str, Json]
    buffer: torch.Tensor

    @cached_property
    def bytes_view(self) -> memoryview:
        """The buffer as a memoryview of bytes, not copied; a meta one has no content."""
        return as_bytes(self.buffer)

    def named_tensors(self) -> Iterator[tuple[TensorEntry, torch.Tensor]]:
        """Each entry with its tensor, a view into the buffer."""
        offset = 0
        for entry in self.tensors:
            raw = self.buffer[offset : offset + entry.size_bytes]
            yield entry, raw.view(DTYPES[entry.dtype]).view(entry.shape)
            offset += padded(entry.size_bytes)
