"""Rotary embeddings of three axes: place in the text, row and column of the picture.

Of each head's d channels, three groups of 2 · ⌊⌊d/3⌋/2⌋ are rotated, pairs of neighbours together; the rest stay. The
text's angles are those of language models (Su et al. 2021, arXiv:2104.09864), p · 10000^(-2i/⌊d/3⌋); a picture's are
p · π · f with f evenly spaced from 1 to 5 and p from -1 to 1 along the axis. Text sits at -10 on both axes of the
picture, the picture at 8192 in the text. Queries, keys and values are rotated.
"""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from minga.recipes.text_to_image.decoder.shape import DecoderShape

TEXT_BASE: Final = 10_000.0
PICTURE_IN_TEXT: Final = 8192.0
TEXT_IN_PICTURE: Final = -10.0
HIGHEST_FREQUENCY: Final = 5.0


def rotary_angles(shape: DecoderShape) -> Tensor:
    """Angles in radians, float32 [positions, channels rotated / 2]: text, then row, then column."""
    group = shape.head_width // 3
    pairs = group // 2
    text_frequencies = TEXT_BASE ** (-2.0 * torch.arange(pairs, dtype=torch.float64) / group)
    picture_frequencies = math.pi * torch.linspace(1.0, HIGHEST_FREQUENCY, pairs, dtype=torch.float64)
    image = torch.arange(shape.positions - shape.prefix)
    axis = torch.linspace(-1.0, 1.0, shape.grid, dtype=torch.float64)
    text = torch.full((shape.prefix,), TEXT_IN_PICTURE, dtype=torch.float64)
    in_text = torch.cat(
        [
            torch.arange(shape.prefix, dtype=torch.float64),
            torch.full((len(image),), PICTURE_IN_TEXT, dtype=torch.float64),
        ]
    )
    rows = torch.cat([text, axis[torch.div(image, shape.grid, rounding_mode="floor")]])
    columns = torch.cat([text, axis[image % shape.grid]])
    angles = [in_text[:, None] * text_frequencies]
    angles += [places[:, None] * picture_frequencies for places in (rows, columns)]
    return torch.cat(angles, dim=1).float()


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """`x` [..., n, d] with its first channels rotated by pairs; `cosines`, `sines` [n, pairs] of the angles."""
    rotated = 2 * cosines.shape[-1]
    even, odd = x[..., 0:rotated:2], x[..., 1:rotated:2]
    turned = torch.stack([even * cosines - odd * sines, odd * cosines + even * sines], dim=-1).flatten(-2)
    return torch.cat([turned.to(x.dtype), x[..., rotated:]], dim=-1)
