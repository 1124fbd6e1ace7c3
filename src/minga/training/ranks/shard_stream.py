"""Bytes that lie in shards on all ranks, piece by piece to rank 0 and back.

Theory of operation. All ranks walk through the same ranges of the string of bytes (`shard_map.py`), in order. For each
range, each rank sends what it has there in one message. Rank 0 puts these beside what it has itself, and hands the
range on. The way back is the reverse. So no rank needs more memory than for its shards and one message, and rank 0 that
for a range and its messages besides. Where there are replicas of the shards, the first one sends, and all receive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import torch

from minga.training.ranks.process_group import ProcessGroup
from minga.training.ranks.shard_map import ShardMap, ShardSegment
from minga.training.state.snapshot import padded

RANGE_BYTES: Final = 16 << 20
"""Bytes that rank 0 puts together at a time."""


class ShardStream:
    """Carries the bytes of a `ShardMap`; `range_bytes` at a time. All ranks have to call its methods alike.

    `parts` are flat tensors, on any device: what this rank has of each tensor of the map. With `dtype` the bytes are
    those of this type, and elements are converted on the way; else each tensor's own.
    """

    def __init__(self, ranks: ProcessGroup, shards: int, range_bytes: int = RANGE_BYTES) -> None:
        self._ranks, self._range_bytes = ranks, range_bytes
        self.shards = shards
        """Shards of a replica: rank 0 has the first, rank `shards` that of the second replica, and so on."""

    def gather(
        self, shards: ShardMap, parts: Sequence[torch.Tensor], dtype: torch.dtype | None = None
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """At rank 0: the bytes of all ranks, range by range, each with the place of its first one: uint8, CPU memory,
        valid until the next is taken. Bytes of no tensor are 0. Other ranks send theirs, and get nothing.
        """
        memory = self._memory(shards) if self._ranks.leads else None
        for start, stop, segments in shards.ranges(self._range_bytes):
            if memory is None:
                if self._ranks.rank < self.shards and (own := _of_shard(segments, self._ranks.rank)):
                    self._ranks.send(_pack(own, parts, dtype))
                continue
            whole = memory[: stop - start].zero_()
            arriving = [
                (rank, theirs, torch.empty(_message_bytes(theirs), dtype=torch.uint8))
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
        for start, stop, segments in shards.ranges(self._range_bytes):
            own = _of_shard(segments, self._ranks.rank % self.shards, everywhere=True)
            if not self._ranks.leads:
                if own:
                    message = torch.empty(_message_bytes(own), dtype=torch.uint8)
                    self._ranks.take(message)
                    for segment, place in _places(own):
                        _fill(segment, parts, message[place : place + segment.size], dtype)
                continue
            whole = read(start, stop)
            leaving = []
            for rank in range(1, self._ranks.size):
                if theirs := _of_shard(segments, rank % self.shards, everywhere=True):
                    message = torch.empty(_message_bytes(theirs), dtype=torch.uint8)
                    for segment, place in _places(theirs):
                        message[place : place + segment.size].copy_(whole[segment.start - start : segment.stop - start])
                    leaving.append((rank, message))
            self._ranks.send_each(leaving)
            for segment in own:
                _fill(segment, parts, whole[segment.start - start : segment.stop - start], dtype)

    def _memory(self, shards: ShardMap) -> torch.Tensor:
        return torch.empty(min(self._range_bytes, shards.size_bytes), dtype=torch.uint8)


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
    message = torch.empty(_message_bytes(segments), dtype=torch.uint8)
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
