"""The decoder: captions and image tokens in one sequence, each predicted from what stands before it.

    begin, T caption tokens, S² - 1 image tokens ─▶ layers ─▶ mean of two streams ─▶ norm ─▶ logits

The rows of the last matrix are the embeddings, too. Padding of a caption is a token of its own at each position.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from minga.recipes.text_to_image.decoder.layers import (
    Around,
    DecoderLayer,
    GatedFeedForward,
    LayerParts,
    RotaryAttention,
    attention_mask,
    rotary_angles,
    shift_tokens,
)
from minga.recipes.text_to_image.decoder.reversible import ReversibleLayer, run_plain, run_reversible
from minga.recipes.text_to_image.decoder.shape import Attends, DecoderShape, LayerPlan, check_plan

PAD = 0


class TextToImageDecoder(nn.Module):
    """A decoder of `shape`. `is_reversible` changes memory and time of the gradient, and no result."""

    cosines: Tensor
    sines: Tensor

    def __init__(
        self, shape: DecoderShape, *, is_reversible: bool = True, plan: tuple[LayerPlan, ...] | None = None
    ) -> None:
        super().__init__()
        self.shape, self.is_reversible = shape, is_reversible
        self.plan = shape.plan() if plan is None else plan
        check_plan(self.plan)
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
