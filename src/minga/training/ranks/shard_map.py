"""Which rank holds which bytes of a model that is sharded over the ranks of this peer.

Some tensors lie one behind the other in a string of bytes: the vector that peers average, or a state. `fully_shard`
cuts each along its first dimension, so that the first ranks have ceil(rows / ranks) rows each, another one what is
left, and the last ones maybe nothing. What a rank has of a tensor is thus one run of those bytes, a `ShardSegment`.
Tensors that are not sharded are the same in every rank, so rank 0 is asked for them, and each rank is given them.

All ranks make the same map by themselves, from the shapes of whole tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from minga.core.errors import ConfigurationError
from minga.optim.shards import is_sharded


class ShardSegment(NamedTuple):
    """Bytes `start` to `stop` of the string: those of tensor number `tensor` from byte `first` of what `rank` has of
    it on; None: what every rank has.
    """

    start: int
    stop: int
    rank: int | None
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

    def __init__(self, placed: Sequence[Placed], ranks: int, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._segments = [
            segment for index, each in enumerate(placed) for segment in _segments(index, each, ranks) if segment.size
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


def rows_of(rank: int, ranks: int, rows: int) -> tuple[int, int]:
    """The first row of a tensor that `rank` has, and the first that it has not any more."""
    each = -(-rows // ranks)
    return min(rank * each, rows), min((rank + 1) * each, rows)


def is_split(tensor: torch.Tensor) -> bool:
    """Whether ranks hold different rows of `tensor`. Raises `ConfigurationError` if they share it in another way."""
    if not is_sharded(tensor):
        return False
    sharded: Any = tensor
    placements = sharded.placements
    if len(placements) == 1 and placements[0].is_shard(0):
        return True
    if all(placement.is_replicate() for placement in placements):
        return False
    raise ConfigurationError(
        f"a tensor of shape {list(tensor.shape)} is spread over processes as {placements}; only fully_shard over all "
        "processes of one mesh dimension, along dimension 0, is possible"
    )


def _segments(index: int, placed: Placed, ranks: int) -> Iterator[ShardSegment]:
    start, tensor, itemsize = placed
    if not is_split(tensor):
        yield ShardSegment(start, start + tensor.numel() * itemsize, None, index, 0)
        return
    rows = tensor.shape[0]
    row_bytes = tensor.numel() // max(1, rows) * itemsize
    for rank in range(ranks):
        first, last = rows_of(rank, ranks, rows)
        yield ShardSegment(start + first * row_bytes, start + last * row_bytes, rank, index, 0)
