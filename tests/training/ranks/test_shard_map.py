"""Which bytes of a sharded tensor lie where: as `torch.chunk` cuts, in ranges of any size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import minga
from minga.training.ranks.shard_map import Placed, ShardMap, is_split, rows_of


class Placement:
    def __init__(self, dim: int | None) -> None:
        self.dim = dim

    def is_shard(self, dim: int | None = None) -> bool:
        return self.dim is not None and dim in (None, self.dim)

    def is_replicate(self) -> bool:
        return self.dim is None


def sharded(shape: tuple[int, ...], *dims: int | None) -> Any:
    """A tensor that looks like a DTensor to whatever reads its placements."""
    tensor = torch.arange(torch.Size(shape).numel(), dtype=torch.int32).view(shape)
    tensor.placements = tuple(map(Placement, dims))  # type: ignore[attr-defined]
    return tensor


@given(rows=st.integers(0, 40), ranks=st.integers(1, 9))
def test_ranks_have_the_rows_that_torch_gives_them(rows: int, ranks: int) -> None:
    chunks = [chunk.tolist() for chunk in torch.arange(rows).chunk(ranks)] if rows else []
    chunks += [[]] * (ranks - len(chunks))
    assert [list(range(*rows_of(rank, ranks, rows))) for rank in range(ranks)] == chunks


@settings(max_examples=50)
@given(
    shapes=st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=3), min_size=1, max_size=5),
    plain=st.integers(0, 31),
    ranks=st.integers(1, 4),
    range_items=st.integers(1, 40),
)
def test_ranges_put_every_element_where_the_whole_has_it(
    shapes: list[list[int]], plain: int, ranks: int, range_items: int
) -> None:
    tensors = [
        torch.arange(torch.Size(shape).numel()).view(shape) if plain >> index & 1 else sharded(tuple(shape), 0)
        for index, shape in enumerate(shapes)
    ]
    placed, start = [], 0
    for tensor in tensors:
        placed.append(Placed(start, tensor, 4))
        start += tensor.numel() * 4
    put: list[int | None] = [None] * (start // 4)
    last = 0
    for first, stop, segments in ShardMap.of_tensors(placed, ranks, start).ranges(4 * range_items):
        assert first == last
        assert stop - first <= 4 * range_items
        last = stop
        for segment in segments:
            assert first <= segment.start < segment.stop <= stop
            tensor = tensors[segment.tensor]
            held = tensor if segment.shard is None else tensor[slice(*rows_of(segment.shard, ranks, len(tensor)))]
            elements = held.reshape(-1)[segment.first // 4 :][: segment.size // 4].tolist()
            put[segment.start // 4 : segment.stop // 4] = elements
    assert last == start
    assert put == [each for tensor in tensors for each in tensor.reshape(-1).tolist()]


def test_a_tensor_that_ranks_share_in_another_way_is_refused() -> None:
    assert is_split(sharded((4, 2), 0))
    assert not is_split(sharded((4, 2), None))
    assert not is_split(torch.zeros(3))
    assert is_split(sharded((4, 2), None, 0))
    assert not is_split(sharded((4, 2), None, None))
    for dims in ((1,), (0, 0), (0, None), (None, 1), (None, None, 0)):
        with pytest.raises(minga.ConfigurationError, match="along dimension 0"):
            is_split(sharded((4, 2), *dims))
