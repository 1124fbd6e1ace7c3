"""Each peer's own, endless, reproducible order of numbered samples."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from minga.core.errors import ConfigurationError
from minga.recipes.interface import StreamPosition

_CONTEXT = "minga v1 order of data"


def epoch_seed(run_seed: int, position: StreamPosition, epoch: int) -> int:
    """A 64-bit seed for one epoch of one stream; the same on every machine and after every restart."""
    text = f"{run_seed}/{position.peer_id}/{position.worker}/{position.start_step}/{epoch}"
    return int.from_bytes(blake3(text.encode("utf-8"), derive_key_context=_CONTEXT).digest(length=8), "big")


def shuffled(
    samples: int, run_seed: int, position: StreamPosition, micro_batch_size: int
) -> Iterator[tuple[npt.NDArray[np.int64], np.random.Generator]]:
    """The numbers of the samples of each micro-batch, and a generator for all chance in it; without end.

    Every pass over the `samples` is a permutation of them; a micro-batch may lie across two passes. Raises
    `ConfigurationError` unless there are samples and the micro-batch size is at least 1.
    """
    if samples < 1 or micro_batch_size < 1:
        raise ConfigurationError(f"{samples} samples in micro-batches of {micro_batch_size}: each must be at least 1")
    # Epoch -1 is no epoch: the chance within samples has a generator of its own.
    chance = np.random.default_rng(epoch_seed(run_seed, position, -1))
    left = np.empty(0, dtype=np.int64)
    for epoch in count():
        order = np.random.default_rng(epoch_seed(run_seed, position, epoch)).permutation(samples)
        left = np.concatenate([left, order])
        while len(left) >= micro_batch_size:
            yield left[:micro_batch_size], chance
            left = left[micro_batch_size:]
