"""Changes of colour on many pictures at once: brightness, contrast, saturation, hue, grey and blur.

Pictures are float32 [n, c, s, s] from 0 to 255, grey (c = 1) or red, green, blue (c = 3). Which pictures change, by how
much and in which order is drawn by NumPy beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from torch import Tensor

JITTERED: Final = 0.8
GREYED: Final = 0.2
HUE_SHARE: Final = 0.25
"""Shares of the pictures that are jittered and made grey, and of the jitter's strength that the hue has."""

BLUR_LOW, BLUR_HIGH, BLUR_SIDE = 0.1, 2.0, 224
"""Radius of the blur, in pixels of a picture of 224 pixels; smaller pictures are blurred by proportionally less."""

_WEIGHTS: Final = (0.299, 0.587, 0.114)


def jitter(pictures: Tensor, chance: np.random.Generator, strength: float) -> None:
    """Change four pictures of five, in place: brightness, contrast, saturation and hue, in a random order."""
    count = len(pictures)
    chosen = chance.random(count) < JITTERED
    moves = 2.0 * chance.random((4, count)) - 1.0
    order = chance.random((4, count)).argsort(axis=0)
    factors = torch.from_numpy((1.0 + strength * moves[:3]).astype(np.float32))
    turns = torch.from_numpy((HUE_SHARE * strength * moves[3]).astype(np.float32))
    changes: list[tuple[Callable[[Tensor, Tensor], Tensor], Tensor]] = [
        (_brightness, factors[0]),
        (_contrast, factors[1]),
        (_saturation, factors[2]),
        (_hue, turns),
    ]
    for place in range(4):
        for number, (change, amounts) in enumerate(changes[: 4 if pictures.shape[1] == 3 else 2]):
            rows = torch.from_numpy(np.flatnonzero(chosen & (order[place] == number)))
            if len(rows):
                pictures[rows] = change(pictures[rows], amounts[rows].view(-1, 1, 1, 1))


def make_grey(pictures: Tensor, chance: np.random.Generator) -> None:
    """Take the colours out of one picture of five, in place."""
    rows = torch.from_numpy(np.flatnonzero(chance.random(len(pictures)) < GREYED))
    if pictures.shape[1] == 3 and len(rows):
        pictures[rows] = _grey(pictures[rows]).expand(-1, 3, -1, -1)


def blur(pictures: Tensor, chance: np.random.Generator, share: float) -> None:
    """Blur a share of pictures of at most 64 pixels a side by three taps a direction, in place."""
    count, side = len(pictures), pictures.shape[-1]
    chosen = chance.random(count) < share
    radii = (BLUR_LOW + (BLUR_HIGH - BLUR_LOW) * chance.random(count)) * (side / BLUR_SIDE)
    rows = np.flatnonzero(chosen)
    if len(rows):
        taps = np.exp(-0.5 / np.square(radii[rows]))
        side_weight = torch.from_numpy((taps / (1.0 + 2.0 * taps)).astype(np.float32)).view(-1, 1, 1, 1)
        part = pictures[torch.from_numpy(rows)]
        for dim in (2, 3):
            part = part + side_weight * (_neighbours(part, dim) - 2.0 * part)
        pictures[torch.from_numpy(rows)] = part


def _neighbours(pictures: Tensor, dim: int) -> Tensor:
    """The sum of both neighbours of each pixel along a dimension; at the border a pixel is its own."""
    size = pictures.shape[dim]
    before = torch.cat([pictures.narrow(dim, 0, 1), pictures.narrow(dim, 0, size - 1)], dim)
    after = torch.cat([pictures.narrow(dim, 1, size - 1), pictures.narrow(dim, size - 1, 1)], dim)
    return before + after


def _grey(pictures: Tensor) -> Tensor:
    if pictures.shape[1] == 1:
        return pictures
    red, green, blue = (pictures[:, channel : channel + 1] * weight for channel, weight in enumerate(_WEIGHTS))
    return red + green + blue


def _brightness(pictures: Tensor, factor: Tensor) -> Tensor:
    return (pictures * factor).clamp_(0.0, 255.0)


def _contrast(pictures: Tensor, factor: Tensor) -> Tensor:
    levels = _grey(pictures).round().to(torch.int64)  # whole numbers have one sum, however many threads add them up
    mean = (levels.sum(dim=(1, 2, 3), keepdim=True) // levels[0].numel()).float()
    return (mean + (pictures - mean) * factor).clamp_(0.0, 255.0)


def _saturation(pictures: Tensor, factor: Tensor) -> Tensor:
    grey = _grey(pictures)
    return (grey + (pictures - grey) * factor).clamp_(0.0, 255.0)


def _hue(pictures: Tensor, turn: Tensor) -> Tensor:
    """Turn the circle of hues by `turn` of its length; value and chroma stay."""
    red, green, blue = torch.split(pictures, 1, dim=1)
    value, chroma = pictures.amax(1, keepdim=True), pictures.amax(1, keepdim=True) - pictures.amin(1, keepdim=True)
    safe = torch.where(chroma > 0, chroma, torch.ones_like(chroma))
    sixths = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, (blue - red) / safe + 2.0, (red - green) / safe + 4.0),
    )
    sixths = sixths + 6.0 * turn
    found = []
    for place in (5.0, 3.0, 1.0):
        along = torch.remainder(sixths + place, 6.0)
        found.append(value - chroma * torch.minimum(along, 4.0 - along).clamp(0.0, 1.0))
    return torch.cat(found, dim=1)
