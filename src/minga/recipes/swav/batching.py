"""From pictures to batches of crops: for each kind one tensor, all pictures of its first crop before its second one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, repeat

import numpy as np
import torch
from torch import Tensor

from minga.recipes.data.hold_out import content_rank
from minga.recipes.data.order import chance_within, endless, epoch_seed, shuffled, shuffled_blocks
from minga.recipes.interface import Batch, Files, StreamPosition
from minga.recipes.swav.crops import CropRule, FileCropper, crop_arrays
from minga.recipes.swav.pictures import EncodedSet, encoded_pictures
from minga.recipes.swav.settings import ImageData, SwavSettings

Cropper = Callable[[CropRule, np.random.Generator], Tensor]
"""Makes one crop, by a rule, of each picture of a micro-batch: uint8 [n, c, s, s]."""


def crop_names(settings: SwavSettings) -> list[str]:
    """The names of the tensors of a batch, one for each kind of crops."""
    return [f"crops_{index}" for index in range(len(settings.crops))]


def crop_rules(settings: SwavSettings) -> list[CropRule]:
    """How the crops of each kind are made."""
    flip, jitter, blur = settings.flip, settings.jitter, settings.blur
    return [CropRule(side, low, high, flip, jitter, blur) for _, side, low, high in settings.crops]


def make_batch(settings: SwavSettings, crop: Cropper, chance: np.random.Generator) -> Batch:
    """A batch of n pictures: `crops_i` uint8 [count · n, c, s, s] for each kind i."""
    kinds = zip(crop_names(settings), settings.crops, crop_rules(settings), strict=True)
    return {name: torch.cat([crop(rule, chance) for _ in range(count)]) for name, (count, *_), rule in kinds}


def array_batch(settings: SwavSettings, pictures: Tensor, chance: np.random.Generator) -> Batch:
    """A batch of pictures uint8 [n, c, h, w]."""
    return make_batch(settings, lambda rule, own: crop_arrays(pictures, rule, own), chance)


def file_batches(
    settings: SwavSettings, files: Files, run_seed: int, position: StreamPosition, micro_batch_size: int
) -> Iterator[Batch]:
    """Endless batches of picture files: those that travelled with the run, or those of a streamed source."""
    data, cropper = settings.data, FileCropper()
    for bodies, chance in _file_order(data, files, run_seed, position, micro_batch_size):
        pictures = cropper.decode(bodies)
        yield make_batch(settings, lambda rule, own, some=pictures: cropper.crop(some, rule, own), chance)  # type: ignore[misc]


def _file_order(
    data: ImageData, files: Files, run_seed: int, position: StreamPosition, micro_batch_size: int
) -> Iterator[tuple[list[bytes], np.random.Generator]]:
    if data.source == "folder":
        stored = EncodedSet(files)
        for rows, chance in shuffled(len(stored), run_seed, position, micro_batch_size):
            yield [stored.body(row) for row in rows.tolist()], chance
        return

    def open_pass(epoch: int) -> Iterator[bytes]:
        seed = epoch_seed(run_seed, position, epoch)
        bodies = (picture.body for picture in encoded_pictures(data, order=seed))
        kept = (body for body in bodies if content_rank(body) >= data.heldout_fraction)
        return shuffled_blocks(kept, data.shuffle_buffer, repeat(np.random.default_rng(seed)))

    chance = chance_within(run_seed, position)
    pictures = endless(open_pass, "data: the source has no pictures to train on")
    while True:
        yield list(islice(pictures, micro_batch_size)), chance


def synthetic_batch(settings: SwavSettings, size: int) -> Batch:
    """A batch of noise, the same each time."""
    chance = np.random.default_rng(0)
    channels = settings.data.channels
    return {
        name: torch.from_numpy(chance.integers(0, 256, (count * size, channels, side, side), dtype=np.uint8))
        for name, (count, side, *_) in zip(crop_names(settings), settings.crops, strict=True)
    }
