"""Which shard has which bytes of a model that is sharded over this peer's ranks, and how rank 0 gets and sends them.

Some tensors lie one behind the other in a string of bytes: the vector that peers average, or a state. `fully_shard`
cuts each along its first dimension, so that the first shards have ceil(rows / shards) rows each, another one what is
left, and the last ones maybe nothing. What a shard has of a tensor is thus one run of those bytes, a `ShardSegment`.
Tensors that are not sharded are the same in every rank, so rank 0 is asked for them, and each rank is given them.
With a mesh of two dimensions (replicas, shards) several ranks hold the same shard.

All ranks make the same map by themselves, from the shapes of whole tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import torch

from minga.core.errors import ConfigurationError
from minga.optim.shards import is_sharded
from minga.training.ranks.process_group import ProcessGroup
from minga.training.state.snapshot import padded


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
    """The segments of a string of `size_bytes`, in order."""

    def __init__(self, segments: Iterable[ShardSegment], size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._segments = [segment for segment in segments if segment.size]

    @classmethod
    def of_tensors(cls, placed: Sequence[Placed], shards: int, size_bytes: int) -> ShardMap:
        """That of some tensors. Raises `ConfigurationError` for one that is sharded in another way than this."""
        return cls((each for index, one in enumerate(placed) for each in _segments(index, one, shards)), size_bytes)

    @classmethod
    def even(cls, numel: int, shards: int, itemsize: int) -> ShardMap:
        """That of a vector of which each shard has an equal part, as its only tensor."""
        ends = [itemsize * rows_of(shard, shards, numel)[1] for shard in range(shards)]
        parts = enumerate(pairwise([0, *ends]))
        return cls((ShardSegment(start, stop, shard, 0, 0) for shard, (start, stop) in parts), numel * itemsize)

    def of(self, shard: int, *, everywhere: bool = False) -> list[ShardSegment]:
        """What belongs to a shard; with `everywhere` also what every rank has."""
        return _of_shard(self._segments, shard, everywhere=everywhere)

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


# ---- The stream of bytes from the shards on all ranks to rank 0, piece by piece, and back.
#
# Theory of operation. All ranks walk through the same ranges of the string of bytes (see above), in order. For
# each range, each rank sends what it has there in one message. Rank 0 puts these beside what it has itself, and hands
# the range on. The way back is the reverse. So no rank needs more memory than for its shards and one message, and rank
# 0 that for a range and its messages besides. Where there are replicas of the shards, the first one sends, and all
# receive.


RANGE_BYTES: Final = 16 << 20
"""Bytes that rank 0 puts together at a time."""


class ShardStream:
    """Carries the bytes of a `ShardMap`, `RANGE_BYTES` at a time. All ranks have to call its methods alike.

    `parts` are flat tensors, on any device: what this rank has of each tensor of the map. With `dtype` the bytes are
    those of this type, and elements are converted on the way; else each tensor's own.
    """

    def __init__(self, ranks: ProcessGroup, shards: int) -> None:
        self._ranks = ranks
        self.shards = shards
        """Shards of a replica: rank 0 has the first, rank `shards` that of the second replica, and so on."""

    def gather(
        self, shards: ShardMap, parts: Sequence[torch.Tensor], dtype: torch.dtype | None = None
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """At rank 0: the bytes of all ranks, range by range, each with the place of its first one: uint8, CPU memory,
        valid until the next is taken. Bytes of no tensor are 0. Other ranks send theirs, and get nothing.
        """
        memory = self._memory(shards) if self._ranks.leads else None
        for start, stop, segments in shards.ranges(RANGE_BYTES):
            if memory is None:
                if self._ranks.rank < self.shards and (own := _of_shard(segments, self._ranks.rank)):
                    self._ranks.send(_pack(own, parts, dtype))
                continue
            whole = memory[: stop - start].zero_()
            arriving = [
                (rank, theirs, torch.empty(_message_bytes(theirs), dtype=torch.uint8, device="cpu"))
                for rank in range(1, self.shards)
                if (theirs := _of_shard(segments, rank))
            ]
            self._ranks.receive([(rank, message) for rank, _, message in arriving])
            for _, theirs, message in arriving:
                for segment, place in _places(theirs):
                    whole[segment.start - start : segment.stop - start].copy_(message[place : place + segment.size])
            for segment in segments:
                if not segment.shard:
                    target = whole[segment.start - start : segment.stop - start]
                    _copy(_elements(segment, parts, dtype), target)
            yield start, whole

    def scatter(
        self,
        shards: ShardMap,
        parts: Sequence[torch.Tensor],
        read: Callable[[int, int], torch.Tensor],
        dtype: torch.dtype | None = None,
    ) -> None:
        """Fill the `parts` of all ranks; at rank 0 `read` returns the bytes between two places (uint8, CPU)."""
        for start, stop, segments in shards.ranges(RANGE_BYTES):
            own = _of_shard(segments, self._ranks.rank % self.shards, everywhere=True)
            if not self._ranks.leads:
                if own:
                    message = torch.empty(_message_bytes(own), dtype=torch.uint8, device="cpu")
                    self._ranks.take(message)
                    for segment, place in _places(own):
                        _fill(segment, parts, message[place : place + segment.size], dtype)
                continue
            whole = read(start, stop)
            leaving = []
            for rank in range(1, self._ranks.size):
                if theirs := _of_shard(segments, rank % self.shards, everywhere=True):
                    message = torch.empty(_message_bytes(theirs), dtype=torch.uint8, device="cpu")
                    for segment, place in _places(theirs):
                        message[place : place + segment.size].copy_(whole[segment.start - start : segment.stop - start])
                    leaving.append((rank, message))
            self._ranks.send_each(leaving)
            for segment in own:
                _fill(segment, parts, whole[segment.start - start : segment.stop - start], dtype)

    def fill(
        self, shards: ShardMap, parts: Sequence[torch.Tensor], whole: torch.Tensor, dtype: torch.dtype | None = None
    ) -> None:
        """Fill the `parts` of this rank from all of the bytes, in memory that all ranks map."""
        for segment in shards.of(self._ranks.rank % self.shards, everywhere=True):
            _fill(segment, parts, whole[segment.start : segment.stop], dtype)

    def _memory(self, shards: ShardMap) -> torch.Tensor:
        return torch.empty(min(RANGE_BYTES, shards.size_bytes), dtype=torch.uint8, device="cpu")


def _of_shard(segments: Sequence[ShardSegment], shard: int, *, everywhere: bool = False) -> list[ShardSegment]:
    """What belongs to `shard` of some segments; with `everywhere` also what every rank has."""
    return [each for each in segments if each.shard == shard or (everywhere and each.shard is None)]


def _places(segments: Sequence[ShardSegment]) -> Iterator[tuple[ShardSegment, int]]:
    """Each segment with its first byte in a message; elements of any type may begin there."""
    place = 0
    for segment in segments:
        yield segment, place
        place += padded(segment.size)


def _message_bytes(segments: Sequence[ShardSegment]) -> int:
    return sum(padded(segment.size) for segment in segments)


def _pack(segments: Sequence[ShardSegment], parts: Sequence[torch.Tensor], dtype: torch.dtype | None) -> torch.Tensor:
    message = torch.empty(_message_bytes(segments), dtype=torch.uint8, device="cpu")
    for segment, place in _places(segments):
        _copy(_elements(segment, parts, dtype), message[place : place + segment.size])
    return message


def _elements(segment: ShardSegment, parts: Sequence[torch.Tensor], dtype: torch.dtype | None) -> torch.Tensor:
    """The elements of a segment, which is this rank's: in this type, or as they are."""
    part = parts[segment.tensor]
    itemsize = (dtype or part.dtype).itemsize
    elements = part[segment.first // itemsize : (segment.first + segment.size) // itemsize]
    return elements if dtype is None else elements.to(dtype)


def _copy(elements: torch.Tensor, target: torch.Tensor) -> None:
    target.view(elements.dtype).copy_(elements)


def _fill(
    segment: ShardSegment, parts: Sequence[torch.Tensor], source: torch.Tensor, dtype: torch.dtype | None
) -> None:
    part = parts[segment.tensor]
    wire = dtype or part.dtype
    first, last = segment.first // wire.itemsize, (segment.first + segment.size) // wire.itemsize
    part[first:last].copy_(source.view(wire))
