"""How the bytes of a state come out of its tensors and into them again.

A state is one string of bytes (`snapshot.py`), whose tensors may lie on an accelerator, and in other processes too:
`training/ranks` has the access for a peer whose ranks each hold a shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from minga.training.state.snapshot import PIECE_BYTES, StateMemory, StateSnapshot, padded


class TensorAccess:
    """Reads and fills tensors that are in this process as they are."""

    is_local = True
    """Whether one process can read alone."""

    def memory(self, size_bytes: int, directory: Path | None) -> StateMemory:
        """Memory for a state of so many bytes; see `StateMemory.of`."""
        return StateMemory.of(size_bytes, directory)

    @torch.no_grad()
    def read(self, tensors: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        """All bytes of a state that consists of `tensors`, gaps included, in order: uint8 pieces in CPU memory, each
        valid until the next is taken.
        """
        for tensor in tensors:
            for piece in _flat_pieces(tensor):
                yield piece.cpu().view(torch.uint8)
            size = tensor.numel() * tensor.itemsize
            if gap := padded(size) - size:
                yield torch.zeros(gap, dtype=torch.uint8, device="cpu")

    @torch.no_grad()
    def fill(self, placed: Sequence[tuple[int, torch.Tensor | None]], snapshot: StateSnapshot) -> None:
        """Fill the tensors of a snapshot, each given with the place of its first byte; None are left out."""
        for start, tensor in placed:
            if tensor is not None:
                stop = start + tensor.numel() * tensor.itemsize
                tensor.copy_(snapshot.buffer[start:stop].view(tensor.dtype).view(tensor.shape))
                snapshot.release(start, stop)


def _flat_pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """A tensor as flat pieces; in one if it is not contiguous."""
    flat, most = tensor.reshape(-1), max(1, PIECE_BYTES // tensor.itemsize)
    if not tensor.is_contiguous():
        yield flat
        return
    yield from (flat[first : first + most] for first in range(0, flat.numel(), most))
