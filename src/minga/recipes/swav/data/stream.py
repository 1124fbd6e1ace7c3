"""Training on pictures that do not travel with the run: each peer reads the source itself, in an order of its own.

The parts of the source come in an order that depends on peer and epoch; then blocks of pictures are read and each is
permuted, which unlike a shuffle buffer can be drawn again exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count, islice

import numpy as np

from minga.core.errors import ConfigurationError
from minga.recipes.broken_streams import next_pass
from minga.recipes.interface import StreamPosition
from minga.recipes.order import epoch_seed

OpenEpoch = Callable[[int], Iterator[bytes]]
"""All training pictures of the source once, in an order that a seed chooses."""


def streamed_order(
    open_epoch: OpenEpoch, run_seed: int, position: StreamPosition, micro_batch_size: int, block: int
) -> Iterator[tuple[list[bytes], np.random.Generator]]:
    """The files of each micro-batch, and a generator for all chance in it; without end.

    A micro-batch may lie across two epochs. Raises `ConfigurationError` if the source has no pictures, and what
    `open_epoch` raises.
    """
    chance = np.random.default_rng(epoch_seed(run_seed, position, -1))
    pictures = _permuted(open_epoch, run_seed, position, block)
    while True:
        yield list(islice(pictures, micro_batch_size)), chance


def _permuted(open_epoch: OpenEpoch, run_seed: int, position: StreamPosition, block: int) -> Iterator[bytes]:
    for epoch in count():
        seed = epoch_seed(run_seed, position, epoch)
        chance = np.random.default_rng(seed)
        source = open_epoch(seed) if epoch == 0 else next_pass(lambda seed=seed: open_epoch(seed))  # type: ignore[misc]
        is_empty = True
        while some := list(islice(source, block)):
            is_empty = False
            yield from (some[place] for place in chance.permutation(len(some)).tolist())
        if is_empty:
            raise ConfigurationError("data: the source has no pictures to train on")
