"""Rotary embeddings of three axes: place in the text, row and column of the picture.

Of each head's d channels, three groups of 2 · ⌊⌊d/3⌋/2⌋ are rotated, pairs of neighbours together; the rest stay. The
text's angles are those of language models (Su et al. 2021, arXiv:2104.09864), p · 10000^(-2i/⌊d/3⌋); a picture's are
p · π · f with f evenly spaced from 1 to 5 and p from -1 to 1 along the axis. Text sits at -10 on both axes of the
picture, the picture at 8192 in the text. Queries, keys and values are rotated.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
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
    text_frequencies = TEXT_BASE ** (-2.0 * np.arange(pairs) / group)
    picture_frequencies = math.pi * np.linspace(1.0, HIGHEST_FREQUENCY, pairs)
    image = np.arange(shape.positions - shape.prefix)
    axis = np.linspace(-1.0, 1.0, shape.grid)
    text = np.full(shape.prefix, TEXT_IN_PICTURE)
    in_text = np.concatenate([np.arange(shape.prefix), np.full(len(image), PICTURE_IN_TEXT)])
    rows = np.concatenate([text, axis[image // shape.grid]])
    columns = np.concatenate([text, axis[image % shape.grid]])
    angles = [np.outer(in_text, text_frequencies)]
    angles += [np.outer(places, picture_frequencies) for places in (rows, columns)]
    return torch.tensor(np.concatenate(angles, axis=1), dtype=torch.float32)


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """`x` [..., n, d] with its first channels rotated by pairs; `cosines`, `sines` [n, pairs] of the angles."""
    rotated = 2 * cosines.shape[-1]
    even, odd = x[..., 0:rotated:2], x[..., 1:rotated:2]
    turned = torch.stack([even * cosines - odd * sines, odd * cosines + even * sines], dim=-1).flatten(-2)
    return torch.cat([turned.to(x.dtype), x[..., rotated:]], dim=-1)
