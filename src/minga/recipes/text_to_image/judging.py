"""Whether a picture shows the background, the place and the size that its caption says, by its pixels alone; and of
plain shapes also which one it shows, and in which colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from minga.recipes.text_to_image.data.compositions import (
    COLOURS,
    Composer,
    Composition,
    caption_of,
    drawing_of,
    labels_of,
)
from minga.recipes.text_to_image.data.openmoji import Drawing
from minga.recipes.text_to_image.data.shapes import shape_drawings
from minga.recipes.text_to_image.tokens.fsq import Pictures

FAR: Final = 60.0
"""Distance in RGB from which a pixel is not background."""

CENTERED: Final = 1 / 32
"""How far, in sides of the picture, the drawing's middle may be off for it to be in the center."""

LARGE_AREA: Final = 0.20
"""Share of the picture from which a drawing is large."""

FIGURES: Final = ("background", "position", "size", "drawing")

UNLIKE: Final = 0.05
"""Mean squared difference, of pixels from 0 to 1, from which a picture shows none of the shapes."""


def judge(pictures: Pictures, captions: Sequence[str]) -> dict[str, float]:
    """The share of pictures with the right background, position, size and, where all captions name shapes, drawing;
    empty if captions do not say them.

    Background: the named colour nearest to the median of the border's pixels. Position: where the middle of all pixels
    far from that is. Size: how many these are. Drawing: the shape, painted so, that is nearest to the picture.
    """
    if not can_judge(captions):
        return {}
    right, are_shapes = [], all(drawing_of(caption) in _shapes() for caption in captions)
    for picture, caption in zip(pictures, captions, strict=True):
        labels = labels_of(caption)
        if labels is None:
            raise ValueError("a caption without labels")
        seen = seen_in(picture)
        found = [seen[0] == labels[0], seen[2] == labels[2], seen[1] == labels[1]]  # labels: colour, size, place
        right.append([*found, shape_in(picture, *labels) == drawing_of(caption)] if are_shapes else found)
    return {name: float(share) for name, share in zip(FIGURES, np.mean(right, axis=0), strict=False)} if right else {}


def can_judge(captions: Sequence[str]) -> bool:
    """Whether all captions say what a picture should show."""
    return all(labels_of(caption) is not None for caption in captions)


def words_of(picture: npt.NDArray[np.uint8]) -> str:
    """The caption of the composition of shapes that a picture shows; empty if it shows none."""
    labels = seen_in(picture)
    name = shape_in(picture, *labels)
    return caption_of(name, *labels) if name else ""


def shape_in(picture: npt.NDArray[np.uint8], colour: str, size: str, place: str) -> str:
    """The shape that a picture uint8 [side, side, 3] shows, painted as the labels say; empty if none is near."""
    painted = _painted(len(picture), colour, size, place).astype(np.float32)
    apart = (((painted - picture.astype(np.float32)) / 255.0) ** 2).mean(axis=(1, 2, 3))
    return list(_shapes())[int(apart.argmin())] if apart.min() < UNLIKE else ""


@cache
def _shapes() -> dict[str, Drawing]:
    """All shapes by their names."""
    return {each.name: each for each in shape_drawings(len(COLOURS))}


@cache
def _painted(side: int, colour: str, size: str, place: str) -> npt.NDArray[np.uint8]:
    """Each shape as these labels say, [n, side, side, 3]: at most 70 of these stacks of a few hundred kilobytes."""
    drawings = list(_shapes().values())
    composer = Composer(drawings, side)
    return np.stack([composer.paint(Composition(number, colour, size, place)) for number in range(len(drawings))])


def seen_in(picture: npt.NDArray[np.uint8]) -> tuple[str, str, str]:
    """Colour, size and place that a picture uint8 [side, side, 3] shows."""
    pixels = picture.astype(np.float64)
    side = len(pixels)
    border = np.concatenate([pixels[0], pixels[-1], pixels[1:-1, 0], pixels[1:-1, -1]])
    background = np.median(border, axis=0)
    colour = min(COLOURS, key=lambda name: float(((background - COLOURS[name]) ** 2).sum()))
    far = np.sqrt(((pixels - background) ** 2).sum(axis=-1)) > FAR
    if not far.any():
        return colour, "small", "center"
    rows, columns = np.nonzero(far)
    down, right = (float(each.mean()) - (side - 1) / 2 for each in (rows, columns))
    size = "large" if far.mean() >= LARGE_AREA else "small"
    if max(abs(down), abs(right)) < CENTERED * side:
        return colour, size, "center"
    if abs(right) >= abs(down):
        return colour, size, "right" if right > 0 else "left"
    return colour, size, "bottom" if down > 0 else "top"
