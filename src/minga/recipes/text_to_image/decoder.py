"""The decoder of "Training Transformers Together" (arXiv:2207.03481): captions and image tokens in one sequence, each
predicted from what stands before it.

    begin, T caption tokens, S² - 1 image tokens ─▶ layers ─▶ mean of two streams ─▶ norm ─▶ logits

The rows of the last matrix are the embeddings, too. Padding of a caption is a token of its own at each position. It
knows neither words nor pictures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, cast

import numpy as np
import torch
from torch import Tensor, cat, nn
from torch.nn import functional

from minga.core.errors import ConfigurationError
from minga.recipes.text_to_image.reversible import ReversibleLayer, run_plain, run_reversible

# ---- The shape of a decoder: widths, lengths, and which layers share weights.


Attends = Literal["row", "column", "convolution"]
"""Which earlier image tokens an image token attends to, besides all of the text; see `attention_mask`."""

PATTERN: Final[tuple[Attends, ...]] = ("row", "column", "row", "row")
"""Attention of all layers but the last, repeated; a layer shares its weights with those at the same place in it."""


@dataclass(frozen=True)
class LayerPlan:
    """One layer: what its image tokens attend to, and the number of the weights that it shares with other layers."""

    attends: Attends
    weights: int


@dataclass(frozen=True)
class DecoderShape:
    """Everything that the parameters of a decoder depend on.

    text_length: tokens of a caption, T; shorter ones are padded.
    vocabulary: ids of the caption tokenizer, padding (id 0) included.
    codes: ids of the image tokenizer.
    grid: image tokens in a row and in a column, S.
    dropout: share of the attention and feed-forward outputs that training zeroes.
    """

    width: int
    layers: int
    heads: int
    text_length: int
    vocabulary: int
    codes: int
    grid: int
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.width % (4 * self.heads) or self.width // self.heads < 6:
            raise ConfigurationError(
                f"a width of {self.width} with {self.heads} heads: it must be a multiple of 4 · heads, with at least 6 "
                "channels a head"
            )
        if min(self.layers, self.text_length, self.vocabulary, self.codes) < 1 or self.grid < 2:
            raise ConfigurationError(f"no decoder has this shape: {self}")

    @property
    def head_width(self) -> int:
        """Channels of an attention head."""
        return self.width // self.heads

    @property
    def prefix(self) -> int:
        """Positions before the first image token: begin-of-sequence and the caption, T + 1."""
        return self.text_length + 1

    @property
    def image_length(self) -> int:
        """Image tokens of a picture, S²."""
        return self.grid**2

    @property
    def positions(self) -> int:
        """Positions that the model computes, T + S²: the last image token is never an input."""
        return self.text_length + self.image_length

    @property
    def text_ids(self) -> int:
        """Vocabulary and one padding id a position."""
        return self.vocabulary + self.text_length

    def plan(self) -> tuple[LayerPlan, ...]:
        """The layers in order: four sets of weights take turns, the last layer has its own."""
        cycle = len(PATTERN)
        shared = [LayerPlan(PATTERN[place % cycle], place % cycle) for place in range(self.layers - 1)]
        return (*shared, LayerPlan("convolution", min(self.layers - 1, cycle)))


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


# ---- All of it.


PAD = 0


class TextToImageDecoder(nn.Module):
    """A decoder of `shape`. `is_reversible` changes memory and time of the gradient, and no result."""

    cosines: Tensor
    sines: Tensor

    def __init__(self, shape: DecoderShape, *, is_reversible: bool = True) -> None:
        super().__init__()
        self.shape, self.is_reversible = shape, is_reversible
        self.plan = shape.plan()
        weights = 1 + max(layer.weights for layer in self.plan)
        self.attentions = nn.ModuleList(RotaryAttention(shape) for _ in range(weights))
        self.feed_forwards = nn.ModuleList(GatedFeedForward(shape) for _ in range(weights))
        self.layers = nn.ModuleList(DecoderLayer(shape.width, depth) for depth, _ in enumerate(self.plan, start=1))
        self.norm = nn.LayerNorm(shape.width)
        self.logits = nn.Linear(shape.width, shape.text_ids + shape.codes)
        angles = rotary_angles(shape)
        self.register_buffer("cosines", angles.cos(), persistent=False)
        self.register_buffer("sines", angles.sin(), persistent=False)
        for attends in sorted({layer.attends for layer in self.plan}):
            self.register_buffer(f"mask_{attends}", attention_mask(shape, attends), persistent=False)

    def forward(self, captions: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the text, [n, T, vocabulary + T], and of the picture, [n, S², codes].

        `captions` int64 [n, T], 0 where padded; `codes` int64 [n, S²], the last one of which is not read.
        """
        hidden = self.run(self.embed(captions, codes[:, : self.shape.image_length - 1]))
        length = self.shape.text_length
        return self.text_logits(hidden[:, :length]), self.image_logits(hidden[:, length:])

    def labels(self, captions: Tensor) -> Tensor:
        """The ids of captions int64 [n, T] as the model has them: padding differs by position."""
        places = torch.arange(self.shape.text_length, device=captions.device) + self.shape.vocabulary
        return torch.where(captions == PAD, places, captions)

    def embed(self, captions: Tensor, codes: Tensor) -> Tensor:
        """The inputs [n, T + 1 + m, width] of captions [n, T] and the first m codes of each picture."""
        begin = functional.pad(self.labels(captions), (1, 0), value=PAD)
        return functional.embedding(torch.cat([begin, codes + self.shape.text_ids], dim=1), self.logits.weight)

    def run(self, x: Tensor) -> Tensor:
        """All layers: [n, positions, width] to the same shape."""
        layers = [self._layer(parts) for parts in self.parts()]
        if self.is_reversible and torch.is_grad_enabled():
            return run_reversible(layers, x)
        return run_plain(layers, x)

    def text_logits(self, hidden: Tensor) -> Tensor:
        """Logits of text ids: only their rows of the last matrix take part."""
        rows = self.shape.text_ids
        return functional.linear(self.norm(hidden), self.logits.weight[:rows], self.logits.bias[:rows])

    def image_logits(self, hidden: Tensor) -> Tensor:
        """Logits of image codes."""
        rows = self.shape.text_ids
        return functional.linear(self.norm(hidden), self.logits.weight[rows:], self.logits.bias[rows:])

    def parts(self) -> Iterator[LayerParts]:
        """The layers in order."""
        for plan, own in zip(self.plan, self.layers, strict=True):
            attention, feed_forward = self.attentions[plan.weights], self.feed_forwards[plan.weights]
            yield LayerParts(
                cast("DecoderLayer", own),
                cast("RotaryAttention", attention),
                cast("GatedFeedForward", feed_forward),
                plan.attends,
            )

    def mask(self, attends: Attends) -> Tensor:
        """`attention_mask` on the device of the model."""
        return self.get_buffer(f"mask_{attends}")

    def _layer(self, parts: LayerParts) -> ReversibleLayer:
        own, attention, feed_forward = parts.own, parts.attention, parts.feed_forward
        attend = partial(attention, cosines=self.cosines, sines=self.sines, mask=self.mask(parts.attends))
        return ReversibleLayer(
            partial(self._sub_layer, own.attention, attend),
            partial(self._sub_layer, own.feed_forward, feed_forward),
            (*own.attention.parameters(), *attention.parameters()),
            (*own.feed_forward.parameters(), *feed_forward.parameters()),
            is_random=self.training and self.shape.dropout > 0,
        )

    def _sub_layer(self, around: Around, inner: nn.Module | partial[Tensor], x: Tensor) -> Tensor:
        found = inner(shift_tokens(around.norm(x), self.shape))
        return around.scale * functional.dropout(found, self.shape.dropout, self.training)
