"""The parts of a layer: attention and feed-forward, which layers share, and what each layer has of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from minga.recipes.text_to_image.decoder.rotary import rotate
from minga.recipes.text_to_image.decoder.shape import Attends, DecoderShape

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
