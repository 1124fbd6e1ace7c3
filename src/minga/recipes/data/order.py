"""Orders in which samples come: each peer's own, endless, and the same on every machine and after every restart.

Every pass over the data, an epoch, has a seed: the BLAKE3 digest of the run's seed, the stream's position (key of the
peer, worker, step at which it joined) and the number of the epoch. So streams of different peers are independent orders
of the same data, not shares of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count, islice
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from minga.core.errors import ConfigurationError, LocalError
from minga.recipes.interface import StreamPosition

T = TypeVar("T")

ATTEMPTS: Final = 5
FIRST_PAUSE_S: Final = 1.0
_CONTEXT: Final = "minga v1 order of data"


def epoch_seed(run_seed: int, position: StreamPosition, epoch: int) -> int:
    """A 64-bit seed for one epoch of one stream. Epoch -1 is none: it is for the chance within samples."""
    text = f"{run_seed}/{position.peer_id}/{position.worker}/{position.start_step}/{epoch}"
    return int.from_bytes(blake3(text.encode("utf-8"), derive_key_context=_CONTEXT).digest(length=8), "big")


def chance_within(run_seed: int, position: StreamPosition) -> np.random.Generator:
    """The generator of one stream for all chance within samples, such as masks and crops."""
    return np.random.default_rng(epoch_seed(run_seed, position, -1))


def shuffled(
    samples: int, run_seed: int, position: StreamPosition, micro_batch_size: int
) -> Iterator[tuple[npt.NDArray[np.int64], np.random.Generator]]:
    """The numbers of the samples of each micro-batch, and a generator for all chance in it; without end.

    Every pass over the `samples` is a permutation of them; a micro-batch may lie across two passes. Raises
    `ConfigurationError` unless there are samples and the micro-batch size is at least 1.
    """
    if samples < 1 or micro_batch_size < 1:
        raise ConfigurationError(f"{samples} samples in micro-batches of {micro_batch_size}: each must be at least 1")
    chance = chance_within(run_seed, position)
    left = np.empty(0, dtype=np.int64)
    for epoch in count():
        order = np.random.default_rng(epoch_seed(run_seed, position, epoch)).permutation(samples)
        left = np.concatenate([left, order])
        while len(left) >= micro_batch_size:
            yield left[:micro_batch_size], chance
            left = left[micro_batch_size:]


def streamed(
    open_pass: Callable[[int], Iterable[T]], run_seed: int, position: StreamPosition, micro_batch_size: int, empty: str
) -> Iterator[tuple[list[T], np.random.Generator]]:
    """The same of a source that is read pass after pass, as `endless` describes it: the samples of each micro-batch,
    and the generator for all chance in it.
    """
    items, chance = endless(open_pass, empty), chance_within(run_seed, position)
    while True:
        yield list(islice(items, micro_batch_size)), chance


def endless(open_pass: Callable[[int], Iterable[T]], empty: str) -> Iterator[T]:
    """The items of a source, pass after pass; `open_pass` gives those of a pass by its number.

    Raises `ConfigurationError` with the words `empty` if a pass has no item, and what the source raises.
    """
    return (item for _, item in numbered_passes(open_pass, empty))


def numbered_passes(open_pass: Callable[[int], Iterable[T]], empty: str) -> Iterator[tuple[int, T]]:
    """The same with the number of the pass before each item."""
    for number in count():
        is_empty = True
        for item in open_pass(0) if number == 0 else next_pass(partial(open_pass, number)):
            is_empty = False
            yield number, item
        if is_empty:
            raise ConfigurationError(empty)


def next_pass(open_pass: Callable[[], Iterable[T]], pause: Callable[[float], None] = time.sleep) -> Iterator[T]:
    """The items of a source that has given all its items before: it is tried again, after 1, 2, 4, 8 and 16 seconds,
    even if it cannot be opened, or nothing comes.

    Raises the `LocalError` of the last attempt.
    """
    for failures in range(ATTEMPTS + 1):
        try:
            items = iter(open_pass())
            first = list(islice(items, 1))
        except LocalError:
            if failures == ATTEMPTS:
                raise
            pause(FIRST_PAUSE_S * 2**failures)
        else:
            yield from first
            yield from items
            return


def block_chances(run_seed: int, position: StreamPosition, epoch: int) -> Iterator[np.random.Generator]:
    """A generator for each block of an epoch."""
    for number in count():
        seed = f"{epoch_seed(run_seed, position, epoch)}/{number}".encode()
        yield np.random.default_rng(int.from_bytes(blake3(seed).digest(length=8), "big"))


def shuffled_blocks(items: Iterable[T], size: int, chance: Iterator[np.random.Generator]) -> Iterator[T]:
    """The items, of which each `size` in a row are permuted, by the next generator of `chance`. Unlike a shuffle buffer
    the order is one of blocks alone: it can be drawn again from any block on.
    """
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield from (some[place] for place in next(chance).permutation(len(some)).tolist())
