"""From pictures to batches of crops: for each kind one tensor, all pictures of its first crop before its second one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from minga.recipes.interface import Batch, Files, StreamPosition
from minga.recipes.order import shuffled
from minga.recipes.swav.augmentation.arrays import crop_arrays
from minga.recipes.swav.augmentation.crop_rule import CropRule
from minga.recipes.swav.augmentation.encoded import FileCropper
from minga.recipes.swav.data.encoded_set import EncodedSet
from minga.recipes.swav.data.preparation import is_held_out
from minga.recipes.swav.data.settings import ImageData
from minga.recipes.swav.data.stream import streamed_order
from minga.recipes.swav.data.streamed import encoded_pictures
from minga.recipes.swav.settings import SwavSettings

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

    def open_epoch(seed: int) -> Iterator[bytes]:
        bodies = (picture.body for picture in encoded_pictures(data, order=seed))
        return (body for body in bodies if not is_held_out(body, data.heldout_fraction))

    yield from streamed_order(open_epoch, run_seed, position, micro_batch_size, data.shuffle_buffer)


def synthetic_batch(settings: SwavSettings, size: int) -> Batch:
    """A batch of noise, the same each time."""
    chance = np.random.default_rng(0)
    channels = settings.data.channels
    return {
        name: torch.from_numpy(chance.integers(0, 256, (count * size, channels, side, side), dtype=np.uint8))
        for name, (count, side, *_) in zip(crop_names(settings), settings.crops, strict=True)
    }
