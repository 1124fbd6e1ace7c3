"""The tensors of a state that is sharded over the ranks of this peer, as the bytes that any peer has of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from minga.core.errors import ConfigurationError
from minga.optim.shards import is_sharded, local
from minga.training.ranks.process_group import ProcessGroup
from minga.training.ranks.shard_map import Placed, ShardMap
from minga.training.ranks.shard_stream import ShardStream
from minga.training.state.snapshot import StateSnapshot, padded
from minga.training.state.state_memory import StateMemory
from minga.training.state.tensor_access import TensorAccess


class ShardedAccess(TensorAccess):
    """Rank 0 reads and fills the tensors of all ranks; the others take part, and hold nothing but their shards.

    Both methods are collective. Rank 0 has the snapshot; those of other ranks have its description only. Tensors that
    are not sharded are read at rank 0 and filled in all ranks.
    """

    is_local = False

    def __init__(self, ranks: ProcessGroup, stream: ShardStream) -> None:
        self._ranks, self._stream = ranks, stream

    def memory(self, size_bytes: int, directory: Path | None) -> StateMemory:
        """Memory for the whole state at rank 0, and for nothing elsewhere."""
        return super().memory(size_bytes if self._ranks.leads else 0, directory)

    @torch.no_grad()
    def read(self, tensors: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        """See `TensorAccess`; other ranks than 0 get nothing."""
        placed, start = list[Placed](), 0
        for tensor in tensors:
            placed.append(Placed(start, tensor, tensor.itemsize))
            start += padded(tensor.numel() * tensor.itemsize)
        shards = ShardMap(placed, self._stream.shards, start)
        parts = [local(tensor).reshape(-1) for tensor in tensors]
        for _, piece in self._stream.gather(shards, parts):
            yield piece

    @torch.no_grad()
    def fill(self, placed: Sequence[tuple[int, torch.Tensor | None]], snapshot: StateSnapshot) -> None:
        """See `TensorAccess`."""
        targets = [(start, tensor) for start, tensor in placed if tensor is not None]
        total = max((start + tensor.numel() * tensor.itemsize for start, tensor in targets), default=0)
        shards = ShardMap([Placed(start, each, each.itemsize) for start, each in targets], self._stream.shards, total)
        own = [local(tensor) for _, tensor in targets]
        parts = [tensor.reshape(-1) for tensor in own]

        last = (0, 0)

        def read(start: int, stop: int) -> torch.Tensor:
            nonlocal last
            snapshot.release(*last)
            last = start, stop
            return snapshot.buffer[start:stop]

        self._stream.scatter(shards, parts, read)
        snapshot.release(*last)
        for tensor, part in zip(own, parts, strict=True):
            if part.data_ptr() != tensor.data_ptr():  # it was not contiguous, so that its flat form is a copy
                tensor.copy_(part.view(tensor.shape))


def check_kept(optimizer: torch.optim.Optimizer) -> None:
    """Raise `ConfigurationError` if `optimizer` keeps a tensor for a sharded parameter that is this rank's alone."""
    for parameter, kept in optimizer.state.items():
        for key, value in kept.items() if is_sharded(parameter) else ():
            if isinstance(value, torch.Tensor) and value.numel() > 1 and not is_sharded(value):
                raise ConfigurationError(
                    f"{type(optimizer).__name__} keeps {key} as a tensor of one process, while the parameter is "
                    "sharded; such an optimizer cannot train a sharded model together with others"
                )
