"""The sizes in which the recipe builds its decoder, and the pictures that go with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Size = Literal["tiny", "small", "base", "paper"]


@dataclass(frozen=True)
class TextToImageSize:
    """What distinguishes the sizes; see `DecoderShape`. `side`: of a picture, in pixels."""

    width: int
    layers: int
    heads: int
    text_length: int
    vocabulary: int
    side: int
    codes: int
    grid: int
    levels: tuple[int, ...]


SIZES: Final[dict[Size, TextToImageSize]] = {
    # Learns background colours within a minute on one CPU core.
    "tiny": TextToImageSize(128, 6, 4, 24, 2048, 32, 256, 8, (8, 6, 5)),
    "small": TextToImageSize(256, 12, 4, 32, 4096, 64, 512, 16, (8, 8, 8)),
    "base": TextToImageSize(512, 24, 8, 64, 8192, 128, 1024, 16, (8, 8, 4, 4)),
    # The model of the paper: 125,894,244 parameters, with the vocabulary of T5 and 8,192 codes.
    "paper": TextToImageSize(1024, 64, 16, 256, 32_100, 256, 8192, 32, (8, 8, 8, 4, 4)),
}
