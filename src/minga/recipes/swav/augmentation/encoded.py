"""Crops of picture files, one by one, by Pillow, on several threads: it lets other threads run while it computes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter
from torch import Tensor

from minga.recipes.images.loading import open_picture
from minga.recipes.swav.augmentation.colour import BLUR_HIGH, BLUR_LOW, BLUR_SIDE, GREYED, HUE_SHARE, JITTERED
from minga.recipes.swav.augmentation.crop_boxes import crop_boxes
from minga.recipes.swav.augmentation.crop_rule import CropRule

THREADS: Final = 4


class FileCropper:
    """Decodes pictures and cuts crops out of them; the threads end with the object."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="minga-pictures")

    def decode(self, bodies: Sequence[bytes]) -> list[Image.Image]:
        """The pictures in files. Raises `ConfigurationError` for what is none."""
        return list(self._pool.map(open_picture, bodies))

    def crop(self, pictures: Sequence[Image.Image], rule: CropRule, chance: np.random.Generator) -> Tensor:
        """One crop of each picture, uint8 [n, 3, side, side]; chance of one picture does not depend on the others."""
        seeds = chance.integers(0, 2**63, len(pictures)).tolist()
        crops = self._pool.map(lambda picture, seed: crop_picture(picture, rule, seed), pictures, seeds)
        return torch.from_numpy(np.stack([np.asarray(crop) for crop in crops])).permute(0, 3, 1, 2).contiguous()


def crop_picture(picture: Image.Image, rule: CropRule, seed: int) -> Image.Image:
    """A crop of an RGB picture: mirrored, jittered, made grey and blurred at times."""
    chance = np.random.default_rng(seed)
    top, left, height, width = crop_boxes(chance, 1, picture.height, picture.width, rule.low, rule.high)[0].tolist()
    box = (left, top, left + width, top + height)
    crop = picture.resize((rule.side, rule.side), Image.Resampling.BILINEAR, box=box)
    draws, order = chance.random(9).tolist(), chance.permutation(4).tolist()
    if draws[0] < rule.flip:
        crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if draws[1] < JITTERED and rule.jitter > 0:
        for number in order:
            crop = _change(crop, number, 2.0 * draws[2 + number] - 1.0, rule.jitter)
    if draws[6] < GREYED:
        crop = crop.convert("L").convert("RGB")
    if draws[7] < rule.blur:
        radius = (BLUR_LOW + (BLUR_HIGH - BLUR_LOW) * draws[8]) * rule.side / BLUR_SIDE
        crop = crop.filter(ImageFilter.GaussianBlur(radius))
    return crop


def _change(crop: Image.Image, number: int, move: float, strength: float) -> Image.Image:
    """Brightness, contrast, saturation or hue, by `number`, moved by -1 to 1 times the strength."""
    if number < 3:
        kinds = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
        return kinds[number](crop).enhance(1.0 + strength * move)
    hues = np.array(crop.convert("HSV"))
    hues[..., 0] += np.uint8(round(HUE_SHARE * strength * move * 256) % 256)  # hues are a circle of 256
    return Image.fromarray(hues, "HSV").convert("RGB")
