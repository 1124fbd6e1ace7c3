"""From pictures to batches of crops: for each kind one tensor, all pictures of its first crop before its second one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from minga.recipes.interface import Batch
from minga.recipes.swav.augmentation.arrays import CropRule
from minga.recipes.swav.settings import SwavSettings

Cropper = Callable[[CropRule, np.random.Generator], Tensor]
"""Makes one crop, by a rule, of each picture of a micro-batch: uint8 [n, c, s, s]."""


def crop_names(settings: SwavSettings) -> list[str]:
    """The names of the tensors of a batch, one for each kind of crops."""
    return [f"crops_{index}" for index in range(len(settings.crops))]


def crop_rules(settings: SwavSettings) -> list[CropRule]:
    """How the crops of each kind are made."""
    return [CropRule(side, low, high, settings.jitter, settings.blur) for _, side, low, high in settings.crops]


def make_batch(settings: SwavSettings, crop: Cropper, chance: np.random.Generator) -> Batch:
    """A batch of n pictures: `crops_i` uint8 [count · n, c, s, s] for each kind i."""
    kinds = zip(crop_names(settings), settings.crops, crop_rules(settings), strict=True)
    return {name: torch.cat([crop(rule, chance) for _ in range(count)]) for name, (count, *_), rule in kinds}


def synthetic_batch(settings: SwavSettings, size: int) -> Batch:
    """A batch of noise, the same each time."""
    chance = np.random.default_rng(0)
    channels = settings.data.channels
    return {
        name: torch.from_numpy(chance.integers(0, 256, (count * size, channels, side, side), dtype=np.uint8))
        for name, (count, side, *_) in zip(crop_names(settings), settings.crops, strict=True)
    }
