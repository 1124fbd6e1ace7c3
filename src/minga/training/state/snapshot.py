"""A training state at one step: named tensors in one block of bytes, and a few numbers.

All tensors lie one behind the other in a single flat buffer, each at a multiple of `ALIGNMENT_BYTES`, with zeros in the
gaps. So a state is a byte string with a table of contents. Code that knows nothing about tensors can cut it into
chunks, hash, send and compare it, and each tensor is a view into it.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Final

import msgspec
import torch

from minga.averaging.codecs.tensor_bytes import as_bytes
from minga.training.lineage import UNFOUNDED, Lineage
from minga.training.state.scalars import Json

# ---- The memory of a state that is no part of the model: a file without a name, if the state is large.
#
# A peer holds such states for others that download them, while it writes a checkpoint, and while it downloads one
# itself. In memory each would take as much as the model and all that the optimizer keeps. So a large one is a file
# without a name, mapped into memory: the system has its pages on disk, and gives their memory to other uses whenever
# it wants. What was read or written is given back at once by `release`, so that it does not even count as this
# process's.


FILED_BYTES: Final = 16 << 20
"""States of so many bytes or more lie in a file."""
PIECE_BYTES: Final = 16 << 20
"""Of a state in a file so much is in memory at a time."""

logger = logging.getLogger("minga.training")


@dataclass(frozen=True, eq=False)
class StateMemory:
    """Bytes of a state, as a flat uint8 tensor; `mapping` if they lie in a file."""

    buffer: torch.Tensor
    mapping: mmap.mmap | None = None

    @classmethod
    def of(cls, size_bytes: int, directory: Path | None = None, *, is_meta: bool = False) -> StateMemory:
        """Zeroed memory, in a file in `directory` if it is large; without a directory, or room there, in memory. With
        `is_meta` it has a size only.

        Raises `RuntimeError` if the memory does not suffice.
        """
        if is_meta:
            return cls(torch.empty(size_bytes, dtype=torch.uint8, device="meta"))
        if directory is not None and size_bytes >= FILED_BYTES:
            try:
                mapping = _mapped(size_bytes, directory)
            except (OSError, ValueError) as error:
                logger.warning(
                    "a state of %d MiB goes to memory: no file in %s: %s", size_bytes >> 20, directory, error
                )
            else:
                return cls(torch.frombuffer(mapping, dtype=torch.uint8), mapping)
        return cls(torch.zeros(size_bytes, dtype=torch.uint8, device="cpu"))

    def release(self, start: int = 0, stop: int | None = None) -> None:
        """Bytes `start` to `stop` are not needed in memory for now; they stay what they are."""
        if self.mapping is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        stop = len(self.mapping) if stop is None else min(stop, len(self.mapping))
        start -= start % mmap.PAGESIZE
        if stop > start:
            self.mapping.madvise(mmap.MADV_DONTNEED, start, stop - start)


def _mapped(size_bytes: int, directory: Path) -> mmap.mmap:
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=directory, prefix=".state-") as file:
        _reserve(file, size_bytes)
        return mmap.mmap(file.fileno(), size_bytes)


def _reserve(file: IO[bytes], size_bytes: int) -> None:
    """Take the room on disk now: a disk that turns out to be full when a page is written ends the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size_bytes)
        return
    zeros = bytes(1 << 20)
    for start in range(0, size_bytes, len(zeros)):
        file.write(zeros[: size_bytes - start])
    file.flush()


# ---- The snapshot of a state.


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
    `scalars` are JSON values. A large one may lie in a file, see `snapshot.py`: then what was read by one of the
    iterators here is out of memory again when the next is taken.
    """

    step: int
    tensors: tuple[TensorEntry, ...]
    scalars: dict[str, Json]
    buffer: torch.Tensor
    memory: StateMemory | None = field(default=None, repr=False)
    """That of the buffer, if it lies in a file."""
    lineage: Lineage = UNFOUNDED
    """Where the state comes from. It is no part of the state's digest: equal numbers may have unequal histories."""

    @classmethod
    def within(
        cls, step: int, tensors: tuple[TensorEntry, ...], scalars: dict[str, Json], memory: StateMemory
    ) -> StateSnapshot:
        """The one whose bytes are in `memory`."""
        return cls(step, tensors, scalars, memory.buffer, memory)

    def of(self, lineage: Lineage) -> StateSnapshot:
        """The same state with this lineage; nothing is copied."""
        return replace(self, lineage=lineage)

    @cached_property
    def bytes_view(self) -> memoryview:
        """The buffer as a memoryview of bytes, not copied; a meta one has no content."""
        return as_bytes(self.buffer)

    def release(self, start: int = 0, stop: int | None = None) -> None:
        """Bytes `start` to `stop` are not needed in memory for now."""
        if self.memory is not None:
            self.memory.release(start, stop)

    def pieces(self, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Bytes `start` to `stop` (default: all), piece by piece."""
        stop = len(self.bytes_view) if stop is None else stop
        for first in range(start, stop, PIECE_BYTES):
            last = min(first + PIECE_BYTES, stop)
            yield self.bytes_view[first:last]
            self.release(first, last)

    def named_tensors(self) -> Iterator[tuple[TensorEntry, torch.Tensor]]:
        """Each entry with its tensor, a view into the buffer."""
        for entry, start in self.placed():
            yield entry, self.tensor(entry, start)
            self.release(start, start + entry.size_bytes)

    def tensor(self, entry: TensorEntry, start: int) -> torch.Tensor:
        """The tensor that begins at byte `start`, a view into the buffer."""
        return self.buffer[start : start + entry.size_bytes].view(DTYPES[entry.dtype]).view(entry.shape)

    def placed(self) -> Iterator[tuple[TensorEntry, int]]:
        """Each entry with the place of its first byte."""
        offset = 0
        for entry in self.tensors:
            yield entry, offset
            offset += padded(entry.size_bytes)

    def has_bytes_of(self, other: StateSnapshot) -> bool:
        """Whether the bytes of both are the same; those of meta ones are."""
        if self.buffer.is_meta or other.buffer.is_meta:
            return self.buffer.is_meta == other.buffer.is_meta
        return self.buffer.numel() == other.buffer.numel() and all(
            one == another for one, another in zip(self.pieces(), other.pieces(), strict=True)
        )
