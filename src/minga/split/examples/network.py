"""A network that is cut in two or three: bottom, top, and where labels stay at the client, head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor, nn


@dataclass(frozen=True)
class CutShape:
    """The sizes of a `CutNetwork`.

    A sample has the shape `sample`. The bottom has a 3 by 3 convolution for each of `channels` (for pictures; each but
    the first halves height and width), then a dense layer for each of `bottom`; the top a dense layer for each of
    `top`. What gives the logits of the `classes` is the end of the top, or the head where `has_head`.
    """

    sample: tuple[int, ...]
    classes: int
    channels: tuple[int, ...] = ()
    bottom: tuple[int, ...] = (128, 128)
    top: tuple[int, ...] = (64,)
    has_head: bool = False


class CutNetwork(nn.Module):
    """Bottom, top and head one after the other; without a head, `head` is None and the top gives the logits."""

    def __init__(self, shape: CutShape) -> None:
        """Raises `ValueError` if a part would have no layer, or if samples that are no pictures have `channels`."""
        super().__init__()
        if not shape.channels + shape.bottom:
            raise ValueError("a bottom needs at least one layer")
        if shape.has_head and not shape.top:
            raise ValueError("a top before a head needs at least one layer")
        before, width = _convolutions(shape)
        self.bottom = nn.Sequential(*before, *_dense(width, shape.bottom))
        width = shape.bottom[-1] if shape.bottom else width
        last = nn.Linear(shape.top[-1] if shape.top else width, shape.classes)
        self.top = nn.Sequential(*_dense(width, shape.top), *([] if shape.has_head else [last]))
        self.head: nn.Module | None = last if shape.has_head else None
        self.cut_width = width
        """Values that the client sends of each sample."""

    def forward(self, inputs: Tensor) -> Tensor:
        """The logits, [n, classes], of inputs [n, …]."""
        found: Tensor = self.top(self.bottom(inputs))
        return found if self.head is None else self.head(found)


def _convolutions(shape: CutShape) -> tuple[list[nn.Module], int]:
    if not shape.channels:
        return [nn.Flatten()], prod(shape.sample)
    if len(shape.sample) != 3:
        raise ValueError(f"samples {shape.sample} are no pictures, for which channels are")
    found: list[nn.Module] = []
    channels, height, width = shape.sample
    for number, following in enumerate(shape.channels):
        found += [nn.Conv2d(channels, following, 3, stride=2 if number else 1, padding=1), nn.ReLU()]
        channels = following
        if number:
            height, width = (height + 1) // 2, (width + 1) // 2
    return [*found, nn.Flatten()], channels * height * width


def _dense(width: int, widths: Sequence[int]) -> list[nn.Module]:
    found: list[nn.Module] = []
    for following in widths:
        found += [nn.Linear(width, following), nn.ReLU()]
        width = following
    return found
