"""Codes that each peer reads by itself, endlessly, in an order of its own.

A block of `shuffle_buffer` pairs is read, permuted by the seed of its epoch and number, and given out; so the order
follows from the seed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice

import numpy as np
from blake3 import blake3

from minga.core.errors import ConfigurationError
from minga.recipes.broken_streams import next_pass
from minga.recipes.interface import StreamPosition
from minga.recipes.order import epoch_seed
from minga.recipes.text_to_image.pairs import Pairs

CodedRow = tuple[str, "np.ndarray[tuple[int], np.dtype[np.int64]]"]
"""A caption, and codes int64 [S²]."""


def streamed_blocks(
    open_rows: Callable[[], Iterable[CodedRow]],
    encode: Callable[[list[CodedRow]], Pairs],
    run_seed: int,
    position: StreamPosition,
    block: int,
) -> Iterator[Pairs]:
    """Pairs, some thousand at a time, in the order in which they are to be used; without end.

    Raises `ConfigurationError` if there are none at all.
    """
    for epoch in count():
        rows, empty = iter(open_rows() if epoch == 0 else next_pass(open_rows)), True
        for number in count():
            some = list(islice(rows, block))
            if not some:
                break
            seed = f"{epoch_seed(run_seed, position, epoch)}/{number}".encode()
            random = np.random.default_rng(int.from_bytes(blake3(seed).digest(length=8), "big"))
            pairs = encode(some)
            order = random.permutation(len(pairs))
            yield Pairs(pairs.captions[order], pairs.codes[order])
            empty = False
        if empty:
            raise ConfigurationError("data: no pair of this source passes the filters")


def in_batches(blocks: Iterable[Pairs], size: int) -> Iterator[Pairs]:
    """The pairs of all blocks in the same order, `size` at a time."""
    left: Pairs | None = None
    for block in blocks:
        now = block if left is None else _joined(left, block)
        start = 0
        while start + size <= len(now):
            yield Pairs(now.captions[start : start + size], now.codes[start : start + size])
            start += size
        left = Pairs(now.captions[start:], now.codes[start:])


def _joined(one: Pairs, other: Pairs) -> Pairs:
    return Pairs(np.concatenate([one.captions, other.captions]), np.concatenate([one.codes, other.codes]))
