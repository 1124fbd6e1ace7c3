"""Drawings put on coloured backgrounds, at one of five places, in one of two sizes; the caption says all of it.

So captions stay true, there are many more pairs than drawings, and a machine can tell from a picture whether colour,
place and size are those of its caption.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from PIL import Image

from minga.recipes.images.loading import Pixels
from minga.recipes.text_to_image.data.openmoji import Drawing

COLOURS: Final[dict[str, tuple[int, int, int]]] = {
    "red": (214, 40, 40),
    "green": (56, 176, 0),
    "blue": (29, 78, 216),
    "yellow": (255, 214, 10),
    "white": (255, 255, 255),
    "black": (0, 0, 0),
    "pink": (255, 143, 195),
    "gray": (128, 128, 128),
}
PLACES: Final[dict[str, tuple[int, int]]] = {
    "left": (-1, 0),
    "right": (1, 0),
    "top": (0, -1),
    "bottom": (0, 1),
    "center": (0, 0),
}
"""Where a drawing is moved to: along x (to the right) and y (downwards)."""

SIZES: Final[dict[str, int]] = {"small": 20, "large": 28}
"""Side of a drawing, of 32."""

MOVE: Final = 6
"""How far a drawing is moved, of 32."""


@dataclass(frozen=True)
class Composition:
    """A picture by words."""

    drawing: int
    colour: str
    size: str
    place: str


def caption_of(name: str, colour: str, size: str, place: str) -> str:
    """The caption of a composition."""
    return f"{name} on a {colour} background, {size}, {place}"


def drawing_of(caption: str) -> str:
    """What a caption of `caption_of` says is drawn."""
    return caption.rpartition(" on a ")[0]


def labels_of(caption: str) -> tuple[str, str, str] | None:
    """Colour, size and place that a caption of `caption_of` says, None for others."""
    before, _, rest = caption.rpartition(" on a ")
    colour, _, rest = rest.partition(" background, ")
    size, _, place = rest.partition(", ")
    known = before and colour in COLOURS and size in SIZES and place in PLACES
    return (colour, size, place) if known else None


@dataclass(frozen=True)
class Variety:
    """How many background colours, sizes and places compositions have: the first colours, the last sizes and places."""

    colours: int = len(COLOURS)
    sizes: int = len(SIZES)
    places: int = len(PLACES)


def draw_compositions(
    count: int, drawings: Sequence[Drawing], variety: Variety, random: np.random.Generator
) -> list[Composition]:
    """`count` compositions by chance; none is a drawing on a background of its own colour."""
    names = list(COLOURS)[: variety.colours]
    sizes, places = list(SIZES)[-variety.sizes :], list(PLACES)[-variety.places :]
    chosen = [random.integers(0, most, size=count) for most in (len(drawings), len(names), len(sizes), len(places))]
    return [
        Composition(drawing, _other_than(drawings[drawing].colour, colour, names), sizes[size], places[place])
        for drawing, colour, size, place in np.stack(chosen, axis=1).tolist()
    ]


def _other_than(taken: str, colour: int, names: Sequence[str]) -> str:
    """The colour of that number, or the next one if it is taken."""
    return names[(colour + 1) % len(names)] if names[colour] == taken else names[colour]


class Composer:
    """Paints compositions of `drawings`, `side` pixels wide and high."""

    def __init__(self, drawings: Sequence[Drawing], side: int) -> None:
        self._side, self._drawings = side, [Image.fromarray(each.pixels) for each in drawings]
        self._scaled: dict[tuple[int, str], Image.Image] = {}

    def paint(self, one: Composition) -> Pixels:
        """uint8 [side, side, 3]. Blending is done in whole numbers, the same on every machine."""
        small = self._scaled.get((one.drawing, one.size))
        if small is None:
            width = SIZES[one.size] * self._side // 32
            small = self._drawings[one.drawing].resize((width, width), Image.Resampling.BOX)
            self._scaled[one.drawing, one.size] = small
        picture = Image.new("RGB", (self._side, self._side), COLOURS[one.colour])
        middle = (self._side - small.width) // 2
        right, down = (MOVE * each * self._side // 32 for each in PLACES[one.place])
        picture.paste(small, (middle + right, middle + down), small)
        return np.asarray(picture)
