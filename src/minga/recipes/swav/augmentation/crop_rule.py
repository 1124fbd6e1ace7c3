"""One kind of crops, as the ways to make them read it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CropRule:
    """How crops are made.

    side: in pixels.
    low, high: the share of a picture's area that a crop shows.
    flip: share of the crops that are mirrored.
    jitter: strength of the changes of brightness, contrast and saturation, from 0 to 1; the hue has a quarter of it.
    blur: share of the crops that are blurred.
    """

    side: int
    low: float
    high: float
    flip: float
    jitter: float
    blur: float
