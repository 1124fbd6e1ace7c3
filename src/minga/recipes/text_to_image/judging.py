"""Whether a picture shows the background, the place and the size that its caption says, by its pixels alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from minga.recipes.text_to_image.data.compositions import COLOURS, labels_of
from minga.recipes.text_to_image.tokens.fsq import Pictures

FAR: Final = 60.0
"""Distance in RGB from which a pixel is not background."""

CENTERED: Final = 1 / 32
"""How far, in sides of the picture, the drawing's middle may be off for it to be in the center."""

LARGE_AREA: Final = 0.20
"""Share of the picture from which a drawing is large."""

FIGURES: Final = ("background", "position", "size")


def judge(pictures: Pictures, captions: Sequence[str]) -> dict[str, float]:
    """The share of pictures with the right background, position and size; empty if captions do not say them.

    Background: the named colour nearest to the median of the border's pixels. Position: where the middle of all pixels
    far from that is. Size: how many these are.
    """
    right = []
    for picture, caption in zip(pictures, captions, strict=True):
        if (labels := labels_of(caption)) is None:
            return {}
        right.append([seen == said for seen, said in zip(seen_in(picture), labels, strict=True)])
    shares = np.mean(right, axis=0) if right else []
    # Labels are colour, size and place.
    return {name: float(shares[place]) for name, place in zip(FIGURES, (0, 2, 1), strict=True)} if right else {}


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
