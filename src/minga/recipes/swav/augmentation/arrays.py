"""Crops of small pictures of one size, all at once, as tensor arithmetic.

What leaves is rounded to whole numbers, which hides nearly all differences between machines in the last bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from minga.recipes.swav.augmentation.colour import blur, jitter, make_grey
from minga.recipes.swav.augmentation.crop_boxes import crop_boxes
from minga.recipes.swav.augmentation.crop_rule import CropRule


def crop_arrays(pictures: Tensor, rule: CropRule, chance: np.random.Generator) -> Tensor:
    """One crop of each picture of uint8 [n, c, h, w], uint8 [n, c, side, side]: mirrored at times, changed in
    colour, made grey and blurred at times.
    """
    count, _, height, width = pictures.shape
    boxes = crop_boxes(chance, count, height, width, rule.low, rule.high)
    flipped = chance.random(count) < rule.flip
    crops = _resample(pictures.float(), boxes, flipped, rule.side)
    if rule.jitter > 0:
        jitter(crops, chance, rule.jitter)
    make_grey(crops, chance)
    if rule.blur > 0:
        blur(crops, chance, rule.blur)
    return crops.round_().clamp_(0.0, 255.0).to(torch.uint8)


def _resample(pictures: Tensor, boxes: npt.NDArray[np.int64], flipped: npt.NDArray[np.bool_], side: int) -> Tensor:
    """The boxes of float32 [n, c, h, w] scaled to `side` pixels, between four neighbours each."""
    height, width = pictures.shape[2:]
    steps = (np.arange(side) + 0.5) / side
    tops, lefts, heights, widths = (boxes[:, place, None].astype(np.float64) for place in range(4))
    rows = 2.0 * (tops + heights * steps) / height - 1.0
    columns = 2.0 * (lefts + widths * np.where(flipped[:, None], 1.0 - steps, steps)) / width - 1.0
    shape = (len(boxes), side, side)
    grid = np.stack([np.broadcast_to(columns[:, None, :], shape), np.broadcast_to(rows[:, :, None], shape)], axis=3)
    places = torch.from_numpy(grid.astype(np.float32))
    return functional.grid_sample(pictures, places, mode="bilinear", padding_mode="border", align_corners=False)
