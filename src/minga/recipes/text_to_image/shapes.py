"""Pictures that captions tell: plain shapes in colours, on coloured backgrounds, at one of five places, in one of two
sizes; and what such a picture shows, told by its pixels alone.

So there are more pairs than a model can learn by heart, every caption is true, and a machine can tell from a picture
whether shape, colours, place and size are those of its caption.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from minga.recipes.images.loading import Pixels

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
"""Where a shape is moved to: along x (to the right) and y (downwards)."""

SIZES: Final[dict[str, int]] = {"small": 20, "large": 28}
"""Side of a shape's square, of 32."""

MOVE: Final = 6
"""How far a shape is moved, of 32."""


# ---- A dozen shapes, all of about the same area.


_SIDE: Final = 64
_FINE: Final = 8
"""Shapes are painted this many times larger, and scaled down for smooth edges."""

_AREA: Final = 0.37
"""Share of its square that each shape covers: then a large one can be told from a small one by its area."""

Outline = tuple[tuple[float, float], ...]


def _regular(corners: int, turn: float, inner: float = 1.0) -> Outline:
    """A polygon around 0; with `inner` below 1 a star, whose corners are alternately that much nearer."""
    angles = 2.0 * np.pi * (np.arange(corners) / corners + turn)
    radii = np.where(np.arange(corners) % 2, inner, 1.0)
    return tuple(zip((radii * np.sin(angles)).tolist(), (-radii * np.cos(angles)).tolist(), strict=True))


def _heart() -> Outline:
    angles = np.linspace(0.0, 2.0 * np.pi, 100, endpoint=False)
    across = 16.0 * np.sin(angles) ** 3
    up = 13.0 * np.cos(angles) - 5.0 * np.cos(2 * angles) - 2.0 * np.cos(3 * angles) - np.cos(4 * angles)
    return tuple(zip((across / 17.0).tolist(), (-(up + 2.5) / 17.0).tolist(), strict=True))


def _crescent() -> Outline:
    angles = np.linspace(0.15 * np.pi, 1.85 * np.pi, 60)
    inner = np.linspace(1.72 * np.pi, 0.28 * np.pi, 60)
    outer_points = zip((-np.cos(angles + np.pi)).tolist(), np.sin(angles).tolist(), strict=True)
    inner_points = zip((0.42 + 0.72 * np.cos(inner)).tolist(), (0.72 * np.sin(inner)).tolist(), strict=True)
    return (*outer_points, *inner_points)


SHAPES: Final[dict[str, Outline]] = {
    "circle": _regular(60, 0.0),
    "square": _regular(4, 0.125),
    "triangle": _regular(3, 0.0),
    "diamond": ((0.0, -1.0), (0.62, 0.0), (0.0, 1.0), (-0.62, 0.0)),
    "star": _regular(10, 0.0, 0.5),
    "heart": _heart(),
    "cross": (
        *((-0.36, -1.0), (0.36, -1.0), (0.36, -0.36), (1.0, -0.36), (1.0, 0.36), (0.36, 0.36)),
        *((0.36, 1.0), (-0.36, 1.0), (-0.36, 0.36), (-1.0, 0.36), (-1.0, -0.36), (-0.36, -0.36)),
    ),
    "arrow": ((0.0, -1.0), (0.95, 0.0), (0.42, 0.0), (0.42, 1.0), (-0.42, 1.0), (-0.42, 0.0), (-0.95, 0.0)),
    "moon": _crescent(),
    "house": ((0.0, -1.0), (0.95, -0.15), (0.7, -0.15), (0.7, 0.85), (-0.7, 0.85), (-0.7, -0.15), (-0.95, -0.15)),
    "bar": ((-1.0, -0.42), (1.0, -0.42), (1.0, 0.42), (-1.0, 0.42)),
    "pillar": ((-0.42, -1.0), (0.42, -1.0), (0.42, 1.0), (-0.42, 1.0)),
}


def _mask(outline: Outline) -> npt.NDArray[np.uint8]:
    """The opacity of a shape, uint8 [64, 64], whose centre of gravity is in the middle of the square."""
    points = np.array(outline)
    following = np.roll(points, -1, axis=0)
    turns = points[:, 0] * following[:, 1] - points[:, 1] * following[:, 0]
    area = float(turns.sum()) / 2.0
    points = points - ((points + following) * turns[:, None]).sum(axis=0) / (6.0 * area)
    side = _SIDE * _FINE
    scale = side * min(np.sqrt(_AREA / abs(area)), 0.49 / float(np.abs(points).max()))
    picture = Image.new("L", (side, side), 0)
    ImageDraw.Draw(picture).polygon([(x, y) for x, y in (points * scale + side / 2).round().tolist()], fill=255)
    return np.asarray(picture.resize((_SIDE, _SIDE), Image.Resampling.BOX))


@cache
def drawings() -> dict[str, Image.Image]:
    """Each shape in each colour by name, such as "red circle": 64 pixels a side, with opacity."""
    masks = {name: _mask(outline) for name, outline in SHAPES.items()}
    found = {}
    for colour, paint in COLOURS.items():
        for name, mask in masks.items():
            flat = np.full((_SIDE, _SIDE, 3), paint, dtype=np.uint8)
            found[f"{colour} {name}"] = Image.fromarray(np.dstack([flat, mask]))
    return found


# ---- Pictures by words.


@dataclass(frozen=True)
class Composition:
    """A picture by words: a shape with its colour, such as "red circle", and the colour of the background."""

    shape: str
    colour: str
    size: str
    place: str

    @property
    def caption(self) -> str:
        """All of it in a sentence."""
        return f"{self.shape} on a {self.colour} background, {self.size}, {self.place}"


def told_by(caption: str) -> Composition | None:
    """The composition of a caption; None for any other text."""
    shape, _, rest = caption.rpartition(" on a ")
    colour, _, rest = rest.partition(" background, ")
    size, _, place = rest.partition(", ")
    known = shape in drawings() and colour in COLOURS and size in SIZES and place in PLACES
    return Composition(shape, colour, size, place) if known else None


def draw_compositions(
    count: int, random: np.random.Generator, *, colours: int = 8, sizes: int = 2, places: int = 5
) -> list[Composition]:
    """`count` compositions by chance, of the first colours and the last sizes and places; none is a shape on a
    background of its own colour.
    """
    grounds = list(COLOURS)[:colours]
    shapes = [name for name in drawings() if _colour_of(name) in grounds]
    of_size, at = list(SIZES)[-sizes:], list(PLACES)[-places:]
    chosen = [random.integers(0, most, size=count) for most in (len(shapes), colours, sizes, places)]
    return [
        Composition(shapes[shape], _other_than(_colour_of(shapes[shape]), ground, grounds), of_size[size], at[place])
        for shape, ground, size, place in np.stack(chosen, axis=1).tolist()
    ]


def _colour_of(shape: str) -> str:
    return shape.partition(" ")[0]


def _other_than(taken: str, ground: int, grounds: Sequence[str]) -> str:
    """The colour of that number, or the next one if it is taken."""
    return grounds[(ground + 1) % len(grounds)] if grounds[ground] == taken else grounds[ground]


def paint(one: Composition, side: int) -> Pixels:
    """uint8 [side, side, 3]. Blending is done in whole numbers, the same on every machine."""
    small = _scaled(one.shape, SIZES[one.size] * side // 32)
    picture = Image.new("RGB", (side, side), COLOURS[one.colour])
    middle = (side - small.width) // 2
    right, down = (MOVE * each * side // 32 for each in PLACES[one.place])
    picture.paste(small, (middle + right, middle + down), small)
    return np.asarray(picture)


@cache
def _scaled(shape: str, width: int) -> Image.Image:
    return drawings()[shape].resize((width, width), Image.Resampling.BOX)


# ---- Words by pictures.


FAR: Final = 60.0
"""Distance in RGB from which a pixel is not background."""

CENTERED: Final = 1 / 32
"""How far, in sides of the picture, the shape's middle may be off for it to be in the center."""

LARGE_AREA: Final = 0.20
"""Share of the picture from which a shape is large."""

FIGURES: Final = ("background", "position", "size", "drawing")

UNLIKE: Final = 0.05
"""Mean squared difference, of pixels from 0 to 1, from which a picture shows none of the shapes."""


def judge(pictures: npt.NDArray[np.uint8], captions: Sequence[str]) -> dict[str, float]:
    """The share of pictures uint8 [n, side, side, 3] with the right background, position, size and drawing; empty if
    captions do not say them.

    Background: the named colour nearest to the median of the border's pixels. Position: where the middle of all pixels
    far from that is. Size: how many these are. Drawing: the shape, painted as the caption says, that is nearest.
    """
    told = [one for caption in captions if (one := told_by(caption)) is not None]
    if not told or len(told) < len(captions):
        return {}
    right = []
    for picture, one in zip(pictures, told, strict=True):
        colour, size, place = seen_in(picture)
        is_same = shape_in(picture, one.colour, one.size, one.place) == one.shape
        right.append([colour == one.colour, place == one.place, size == one.size, is_same])
    return {name: float(share) for name, share in zip(FIGURES, np.mean(right, axis=0), strict=True)}


def can_judge(captions: Sequence[str]) -> bool:
    """Whether all captions say what a picture should show."""
    return all(told_by(caption) is not None for caption in captions)


def words_of(picture: Pixels) -> str:
    """The caption of the composition that a picture shows; empty if it shows none."""
    colour, size, place = seen_in(picture)
    shape = shape_in(picture, colour, size, place)
    return Composition(shape, colour, size, place).caption if shape else ""


def shape_in(picture: Pixels, colour: str, size: str, place: str) -> str:
    """The shape that a picture shows with such a background, size and place; empty if none is near."""
    painted = _painted(len(picture), colour, size, place).astype(np.float32)
    apart = (((painted - picture.astype(np.float32)) / 255.0) ** 2).mean(axis=(1, 2, 3))
    return list(drawings())[int(apart.argmin())] if apart.min() < UNLIKE else ""


@cache
def _painted(side: int, colour: str, size: str, place: str) -> npt.NDArray[np.uint8]:
    """Each shape as these words say, [n, side, side, 3]: at most 80 of these stacks of a few hundred kilobytes."""
    return np.stack([paint(Composition(shape, colour, size, place), side) for shape in drawings()])


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
