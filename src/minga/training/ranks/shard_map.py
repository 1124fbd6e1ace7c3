"""Which shard has which bytes of a model that is sharded over the ranks of this peer.

Some tensors lie one behind the other in a string of bytes: the vector that peers average, or a state. `fully_shard`
cuts each along its first dimension, so that the first shards have ceil(rows / shards) rows each, another one what is
left, and the last ones maybe nothing. What a shard has of a tensor is thus one run of those bytes, a `ShardSegment`.
Tensors that are not sharded are the same in every rank, so rank 0 is asked for them, and each rank is given them.
With a mesh of two dimensions (replicas, shards) several ranks hold the same shard.

All ranks make the same map by themselves, from the shapes of whole tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from minga.core.errors import ConfigurationError
from minga.optim.shards import is_sharded


class ShardSegment(NamedTuple):
    """Bytes `start` to `stop` of the string: those of tensor number `tensor` from byte `first` of what `shard` has of
    it on; None: what every rank has.
    """

    start: int
    stop: int
    shard: int | None
    tensor: int
    first: int

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.stop - self.start

    def within(self, start: int, stop: int) -> ShardSegment:
        """The part of it that lies between two bytes of the string."""
        first = max(self.start, start)
        return self._replace(start=first, stop=min(self.stop, stop), first=self.first + first - self.start)


class Placed(NamedTuple):
    """A tensor whose first byte is byte `start` of the string, where an element takes `itemsize` bytes."""

    start: int
    tensor: torch.Tensor
    itemsize: int


class ShardMap:
    """The segments of some tensors in a string of `size_bytes`, in order.

    Raises `ConfigurationError` for a tensor that is sharded in another way than this.
    """

    def __init__(self, placed: Sequence[Placed], shards: int, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._segments = [
            segment for index, each in enumerate(placed) for segment in _segments(index, each, shards) if segment.size
        ]

    def ranges(self, most_bytes: int) -> Iterator[tuple[int, int, list[ShardSegment]]]:
        """Cut the string into ranges of `most_bytes`: first byte, end, and the segments there."""
        index = 0
        for start in range(0, self.size_bytes, most_bytes):
            stop, inside = min(start + most_bytes, self.size_bytes), list[ShardSegment]()
            while index < len(self._segments) and self._segments[index].start < stop:
                inside.append(self._segments[index].within(start, stop))
                if self._segments[index].stop > stop:
                    break
                index += 1
            yield start, stop, inside


def rows_of(shard: int, shards: int, rows: int) -> tuple[int, int]:
    """The first row of a tensor that `shard` has, and the first that it has not any more."""
    each = -(-rows // shards)
    return min(shard * each, rows), min((shard + 1) * each, rows)


def is_split(tensor: torch.Tensor) -> bool:
    """Whether shards have different rows of `tensor`. Raises `ConfigurationError` if they share it in another way."""
    if not is_sharded(tensor):
        return False
    sharded: Any = tensor
    *others, last = sharded.placements
    if len(others) <= 1 and all(placement.is_replicate() for placement in others):
        if last.is_shard(0):
            return True
        if last.is_replicate():
            return False
    raise ConfigurationError(
        f"a tensor of shape {list(tensor.shape)} is spread over processes as {sharded.placements}; only what "
        "fully_shard does along dimension 0 is possible, with or without replicas"
    )


def count_shards(trained: Iterable[torch.Tensor], others: Iterable[torch.Tensor], ranks: int) -> int:
    """Into how many shards `fully_shard` has cut all `trained` parameters, and those of the `others` that are cut.

    Raises `ConfigurationError` if one of them is not, or in another way, or not over all ranks.
    """
    meshes = set[tuple[int, ...]]()
    for parameter in trained:
        if not is_split(parameter):
            raise ConfigurationError(
                f"a parameter of shape {list(parameter.shape)} is not sharded while others are: call "
                "fully_shard(model) on the whole model, too, without ignored_params that are trained"
            )
        meshes.add(_mesh_of(parameter, ranks))
    meshes.update(_mesh_of(parameter, ranks) for parameter in others if is_split(parameter))
    if len({shape[-1] for shape in meshes}) != 1:
        raise ConfigurationError("parameters are sharded over meshes of different shapes; only one is possible")
    return meshes.pop()[-1]


def _mesh_of(parameter: torch.Tensor, ranks: int) -> tuple[int, ...]:
    """The shape of the mesh of ranks over which a parameter is spread."""
    sharded: Any = parameter
    mesh = sharded.device_mesh.mesh
    if mesh.flatten().tolist() != list(range(ranks)):
        raise ConfigurationError(
            f"a parameter of shape {list(parameter.shape)} is spread over the processes {mesh.tolist()}; only a mesh "
            f"of all {ranks} of this peer, in their order, is possible"
        )
    return tuple(mesh.shape)


def _segments(index: int, placed: Placed, shards: int) -> Iterator[ShardSegment]:
    start, tensor, itemsize = placed
    if not is_split(tensor):
        yield ShardSegment(start, start + tensor.numel() * itemsize, None, index, 0)
        return
    rows = tensor.shape[0]
    row_bytes = tensor.numel() // max(1, rows) * itemsize
    for shard in range(shards):
        first, last = rows_of(shard, shards, rows)
        yield ShardSegment(start + first * row_bytes, start + last * row_bytes, shard, index, 0)
