"""Token shift: some channels of each position come from a neighbour before it.

Text (with begin-of-sequence): the first half of the channels, from the previous token. Image: the first quarter from
the token above, the second quarter from the left neighbour in the row. Where there is no neighbour, zeros.
"""

from __future__ import annotations

from torch import Tensor, cat
from torch.nn import functional

from minga.recipes.text_to_image.decoder.shape import DecoderShape


def shift_tokens(x: Tensor, shape: DecoderShape) -> Tensor:
    """`x` [batch, n, width] shifted, for the first n positions, n at least those of the text."""
    text, image = x[:, : shape.prefix], x[:, shape.prefix :]
    half, quarter, count = shape.width // 2, shape.width // 4, image.shape[1]
    before = functional.pad(text[:, :-1, :half], (0, 0, 1, 0))
    text = cat([before, text[..., half:]], dim=-1)
    if not count:
        return text
    rows = -(-count // shape.grid)
    square = functional.pad(image[..., :half], (0, 0, 0, rows * shape.grid - count))
    square = square.reshape(-1, rows, shape.grid, half)
    above = functional.pad(square[:, :-1, :, :quarter], (0, 0, 0, 0, 1, 0))
    left = functional.pad(square[:, :, :-1, quarter:], (0, 0, 1, 0))
    shifted = cat([above, left], dim=-1).flatten(1, 2)[:, :count]
    return cat([text, cat([shifted, image[..., half:]], dim=-1)], dim=1)
