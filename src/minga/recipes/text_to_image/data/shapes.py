"""Plain drawings that need no package: a dozen shapes, each in every colour, all of about the same area."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from minga.recipes.text_to_image.data.compositions import COLOURS
from minga.recipes.text_to_image.data.openmoji import Drawing

_SIDE: Final = 64
_FINE: Final = 8
"""Shapes are painted this many times larger, and scaled down for smooth edges."""

_AREA: Final = 0.37
"""Share of the square that each shape covers: then the judge can tell a large one from a small one by its area."""

Outline = tuple[tuple[float, float], ...]
Opacity = npt.NDArray[np.uint8]


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


def shape_drawings(colours: int) -> list[Drawing]:
    """Each shape in each of the first `colours` colours, such as "red circle"; equal on every machine."""
    masks = {name: _mask(outline) for name, outline in SHAPES.items()}
    found = []
    for colour, paint in list(COLOURS.items())[:colours]:
        for name, mask in masks.items():
            flat = np.empty((_SIDE, _SIDE, 3), dtype=np.uint8)
            flat[:] = paint
            found.append(Drawing(f"{colour} {name}", np.dstack([flat, mask]), colour))
    return found


def _mask(outline: Outline) -> Opacity:
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
