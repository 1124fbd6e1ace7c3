"""The parts of a layer: attention and feed-forward, which layers share, and what each layer has of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor, cat, nn
from torch.nn import functional

from minga.recipes.text_to_image.decoder.shape import Attends, DecoderShape

# ---- Who attends to whom: text to earlier text, image tokens to all text and to some earlier image tokens.


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


# ---- Rotary embeddings of three axes: place in the text, row and column of the picture.
#
# Of each head's d channels, three groups of 2 · ⌊⌊d/3⌋/2⌋ are rotated, pairs of neighbours together; the rest stay.
# The text's angles are those of language models (Su et al. 2021, arXiv:2104.09864), p · 10000^(-2i/⌊d/3⌋); a picture's
# are p · π · f with f evenly spaced from 1 to 5 and p from -1 to 1 along the axis. Text sits at -10 on both axes of
# the picture, the picture at 8192 in the text. Queries, keys and values are rotated.


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


EXPANSION: Final = 4
"""Width of the feed-forward layer, in widths of the model."""


class RotaryAttention(nn.Module):
    """Attention of many heads, with rotary embeddings on queries, keys and values."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.query_key_value = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width)

    def project(self, x: Tensor, cosines: Tensor, sines: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of `x` [batch, n, width], each [batch, heads, n, head width], rotated."""
        packed = self.query_key_value(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        queries, keys, values = rotate(packed, cosines, sines).unbind(0)
        return queries, keys, values

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """The result [batch, queries, width]; `mask` is true where a query attends to a key."""
        found = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        result: Tensor = self.out(found.transpose(1, 2).flatten(2))
        return result

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor, mask: Tensor) -> Tensor:
        """Attention of all positions of `x` [batch, n, width]."""
        return self.attend(*self.project(x, cosines, sines), mask)


class GatedFeedForward(nn.Module):
    """Two linear layers with GELU-gated units between them (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        inner = EXPANSION * shape.width
        self.gated = nn.Linear(shape.width, 2 * inner)
        self.out = nn.Linear(inner, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., width] to the same shape."""
        values, gates = self.gated(x).chunk(2, dim=-1)
        result: Tensor = self.out(values * functional.gelu(gates))
        return result


class Around(nn.Module):
    """What a sub-layer has of its own: the norm before it, and the scale after it (arXiv:2103.17239)."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.full((width,), _initial_scale(depth)))


class DecoderLayer(nn.Module):
    """The layer of `depth`, counted from 1, without the weights that it shares."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.attention = Around(width, depth)
        self.feed_forward = Around(width, depth)


@dataclass(frozen=True)
class LayerParts:
    """A layer with the weights that it shares, and what its image tokens attend to."""

    own: DecoderLayer
    attention: RotaryAttention
    feed_forward: GatedFeedForward
    attends: Attends


def _initial_scale(depth: int) -> float:
    if depth <= 18:
        return 0.1
    return 1e-5 if depth <= 24 else 1e-6


# ---- Token shift: some channels of each position come from a neighbour before it.
#
# Text (with begin-of-sequence): the first half of the channels, from the previous token. Image: the first quarter from
# the token above, the second quarter from the left neighbour in the row. Where there is no neighbour, zeros.


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
