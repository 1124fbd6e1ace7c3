"""Who attends to whom: text to earlier text, image tokens to all text and to some earlier image tokens."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from minga.recipes.text_to_image.decoder.shape import Attends, DecoderShape

REACH: Final = 2
"""Rows above, and columns to either side, that an image token sees by "convolution": a window of 5 by 5."""


def attention_mask(shape: DecoderShape, attends: Attends) -> Tensor:
    """A bool [positions, positions], true where the position of the row attends to that of the column.

    "row": the earlier tokens of the same row of the picture; "column": of the same column; "convolution": those in the
    window of 5 by 5 around it. Each position attends to itself.
    """
    positions = torch.arange(shape.positions)
    image = positions - shape.prefix
    row = torch.div(image, shape.grid, rounding_mode="floor")
    column = image % shape.grid
    if attends == "row":
        near = row[:, None] == row[None, :]
    elif attends == "column":
        near = column[:, None] == column[None, :]
    else:
        near = ((row[:, None] - row[None, :]).abs() <= REACH) & ((column[:, None] - column[None, :]).abs() <= REACH)
    is_text = positions < shape.prefix
    return (positions[:, None] >= positions[None, :]) & (is_text[None, :] | (near & ~is_text[:, None]))
