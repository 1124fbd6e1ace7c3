"""The shape of a decoder: widths, lengths, and which layers share weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from minga.core.errors import ConfigurationError

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


def check_plan(plan: tuple[LayerPlan, ...]) -> None:
    """Raise `ConfigurationError` unless layers of the same weights attend alike, and weights are numbered from 0."""
    attends: dict[int, Attends] = {}
    for place, layer in enumerate(plan):
        known = attends.setdefault(layer.weights, layer.attends)
        if known != layer.attends:
            raise ConfigurationError(
                f"layer {place} shares the weights {layer.weights}, which attend by {known}, and attends by "
                f"{layer.attends}: layers that share weights must attend alike"
            )
    if set(attends) != set(range(len(attends))):
        raise ConfigurationError(f"the weights of {len(plan)} layers are numbered {sorted(attends)}, not from 0 on")
