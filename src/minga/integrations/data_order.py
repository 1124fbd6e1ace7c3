"""Data, which each peer of a run is to read in an order of its own.

A data set with an index is shuffled by a sampler, which draws from torch's own generator unless it has another: a
script that sets a seed, as most do, would read the same samples on all peers. An `IterableDataset` has no sampler:
unless something that belongs to the peer enters its order, all peers compute the same samples at the same time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import IterableDataset

SHUFFLE_BUFFER = 1000
"""Examples of a stream of one shard among which the next one is drawn; the usual number of Hugging Face datasets."""
_SEEDS = 1 << 28
"""An epoch may be added to a seed, in 32 bits."""

logger = logging.getLogger("minga.integrations")


class EpochsOfPeer:
    """The method `set_epoch` of a data set that orders itself by its epoch: each peer has other ones."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset, self._first = dataset, seed % _SEEDS

    def __call__(self, epoch: int) -> None:
        """Set the epoch of this peer that comes in the place of `epoch`."""
        type(self._dataset).set_epoch(self._dataset, self._first + epoch)


def shuffled_by(seed: int, dataset: Any) -> Any:
    """A data set to take in the place of `dataset`: if it is a stream, in the order of the peer with this `seed`."""
    if _is_stream(dataset) and _is_of_hub(dataset):
        return dataset.shuffle(seed=seed, buffer_size=SHUFFLE_BUFFER if dataset.num_shards == 1 else 1)
    order_by(seed, dataset)
    return dataset


def order_by(seed: int, dataset: Any) -> None:
    """Have a stream come in the order of the peer with this `seed`, as far as its class has a way for that; else warn
    once. Anything else is left alone.
    """
    if not _is_stream(dataset) or isinstance(vars(dataset).get("set_epoch"), EpochsOfPeer):
        return
    name, generator = type(dataset).__name__, getattr(dataset, "generator", None)
    if callable(getattr(dataset, "set_epoch", None)) and not (_is_of_hub(dataset) and dataset.num_shards == 1):
        epochs = EpochsOfPeer(dataset, seed)
        epochs(0)
        vars(dataset)["set_epoch"] = epochs
    elif isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif _is_of_hub(dataset):
        logger.warning(
            "the data set is a stream of one shard: all peers read the same samples in the same order. Add "
            "dataset = dataset.shuffle(seed=peer.seed) before the loader is made"
        )
    else:
        logger.warning(
            "%s is an IterableDataset whose order cannot be changed from here: unless it has one of its own on each "
            "peer, all read the same samples in the same order. Seed it by the peer, as with "
            "random.Random(peer.seed), or give it a method set_epoch(self, epoch)",
            name,
        )


def order_loaders(seed: int, loaders: Any) -> None:
    """Have the data of a loader, or of nested mappings and sequences of them, come in the order of the peer with this
    `seed`, as far as they are shuffled or streams.
    """
    for loader in loaders_of(loaders):
        order_by(seed, loader.dataset)
        order_sampler(seed, loader)


def order_sampler(seed: int, loader: Any) -> None:
    """Have what shuffles the data of this loader, if anything does, draw by this `seed`."""
    sampler = _innermost(loader)
    generator = getattr(sampler, "generator", False)
    if generator is None:  # torch's own, of which scripts set the seed
        sampler.generator = torch.Generator().manual_seed(seed)
    elif isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(getattr(sampler, "__dict__", {}).get("seed"), int):  # a DistributedSampler adds the epoch
        sampler.seed = seed % _SEEDS


def tell_of_data_seed(data_seed: int) -> None:
    """Warn of the seed of a script, which stays in force."""
    logger.warning(
        "data_seed=%s: peers whose scripts have the same one read the same samples in the same order; leave it out, "
        "and each peer has its own",
        data_seed,
    )


def _innermost(loader: Any) -> Any:
    """What chooses samples one by one, below all that makes batches of them."""
    for name in ("batch_sampler", "sampler"):
        below = getattr(loader, name, None)
        if below is not None:
            return _innermost(below)
    return loader


def loaders_of(loaders: Any) -> Iterator[Any]:
    """Those of nested mappings and sequences of loaders."""
    if hasattr(loaders, "dataset"):
        yield loaders
    elif isinstance(loaders, Mapping | list | tuple):
        for each in loaders.values() if isinstance(loaders, Mapping) else loaders:
            yield from loaders_of(each)


def _is_stream(dataset: Any) -> bool:
    return isinstance(dataset, IterableDataset)


def _is_of_hub(dataset: Any) -> bool:
    """Whether it is a stream of Hugging Face datasets, which this need not import."""
    return any(kind.__module__.partition(".")[0] == "datasets" for kind in type(dataset).__mro__)
