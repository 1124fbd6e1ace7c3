"""The values of the elements that a sparse codec sends: as float16, or two bits each and two levels for a block.

**float16** clamps to +-65504; what the clamp cuts off stays in the residual, as all that is not sent.

**2bit** sends the sign of each value and whether its magnitude is one of the larger or one of the smaller of its block.
Each of both halves is decoded as the mean magnitude of its own values, a bfloat16. The cut between them is where the
squared error is least, which a median misses on heavy tails. There is one codebook for both signs: of values that are
the largest of their block few lie near 0, so that levels spread over the whole range from - to + would fall in between.

With magnitudes of sum S and number n in a half, its error is Q - S**2 / n where the sum of their squares is Q. So the
best cut is the one with the largest sum of S**2 / n over both halves. Decoded values are cut at the same place again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from minga.averaging.codecs.interface import InvalidEncodingError

Bytes = npt.NDArray[np.uint8]
Values = npt.NDArray[np.float32]

FLOAT16_MAX: Final = 65504.0
_BFLOAT16_MAX: Final = float(torch.finfo(torch.bfloat16).max)


class KeptValues(ABC):
    """A way to write rows of values; a pure function of each row."""

    @abstractmethod
    def encoded_bytes(self, count: int) -> int:
        """What a row of `count` values takes."""

    @abstractmethod
    def encode(self, rows: Values) -> Bytes:
        """The bytes [rows, encoded_bytes(count)] of `rows` [rows, count], which are finite."""

    @abstractmethod
    def decode(self, encoded: Bytes, count: int, limit: float) -> Values:
        """The rows of `count` values each.

        Raises `InvalidEncodingError` for bytes that no encoder makes of values up to `limit`.
        """

    @abstractmethod
    def max_error(self, source: torch.Tensor) -> torch.Tensor:
        """A bound of the error of each element of a block of which the largest are sent, in float64."""


class Float16Values(KeptValues):
    """Each value for itself."""

    def encoded_bytes(self, count: int) -> int:
        """Two for each."""
        return 2 * count

    def encode(self, rows: Values) -> Bytes:
        """The nearest float16 of each."""
        return np.clip(rows, -FLOAT16_MAX, FLOAT16_MAX).astype("<f2", order="C").view(np.uint8)

    def decode(self, encoded: Bytes, count: int, limit: float) -> Values:
        """As they are."""
        rows = np.ascontiguousarray(encoded).view("<f2").astype(np.float32).reshape(-1, count)
        most = float(np.float16(min(limit, FLOAT16_MAX)))
        if not float(np.abs(rows).max(initial=0.0)) <= max(most, limit):  # also true for NaN
            raise InvalidEncodingError(f"a value is no number within +-{limit:g}")
        return rows

    def max_error(self, source: torch.Tensor) -> torch.Tensor:
        """An element that is not sent is off by all of it."""
        return source.abs().double()


class TwoBitValues(KeptValues):
    """A sign and one of two levels for each value."""

    def encoded_bytes(self, count: int) -> int:
        """Two bits for each, and two levels."""
        return -(-2 * count // 8) + 4

    def encode(self, rows: Values) -> Bytes:
        """Signs, halves and then the levels of each row."""
        magnitudes = np.abs(rows).astype(np.float64)
        ordered = np.sort(magnitudes, axis=1)
        count, sums = rows.shape[1], np.cumsum(ordered, axis=1)
        below = np.arange(count)  # how many are in the lower half
        lower = np.concatenate([np.zeros((len(rows), 1)), sums[:, :-1]], axis=1)
        upper = sums[:, -1:] - lower
        cut = np.argmax(lower**2 / np.maximum(below, 1) + upper**2 / (count - below), axis=1)[:, None]
        first = np.take_along_axis(ordered, cut, axis=1)
        halves = magnitudes >= first
        least = np.take_along_axis(lower, cut, axis=1) / np.maximum(cut, 1)
        most = np.maximum(np.take_along_axis(upper, cut, axis=1) / (count - cut), least)  # not less by its rounding
        levels = torch.from_numpy(np.concatenate([least, most], axis=1)).clamp(max=_BFLOAT16_MAX).bfloat16()
        bits = np.concatenate([rows < 0, halves], axis=1)
        written = levels.view(torch.int16).numpy().astype("<i2").view(np.uint8)
        return np.concatenate([np.packbits(bits, axis=1, bitorder="little"), written], axis=1)

    def decode(self, encoded: Bytes, count: int, limit: float) -> Values:
        """The level of each value with its sign."""
        size = -(-2 * count // 8)
        bits = np.unpackbits(encoded[:, :size], axis=1, bitorder="little")
        written = np.ascontiguousarray(encoded[:, size:]).view("<i2").astype(np.int16)
        levels = torch.from_numpy(written).view(torch.bfloat16).float().numpy()
        most = float(torch.tensor(min(limit, _BFLOAT16_MAX), dtype=torch.float32).bfloat16())
        if not (levels[:, 0] >= 0).all() or not (levels[:, 1] >= levels[:, 0]).all() or not (levels <= most).all():
            raise InvalidEncodingError(f"the levels of a block are no increasing numbers from 0 to {limit:g}")
        if bits[:, 2 * count :].any():
            raise InvalidEncodingError("a block has more values than elements")
        magnitudes = np.where(bits[:, count : 2 * count], levels[:, 1:], levels[:, :1])
        return np.where(bits[:, :count], -magnitudes, magnitudes)

    def max_error(self, source: torch.Tensor) -> torch.Tensor:
        """A level is no larger than the largest magnitude, but for its rounding."""
        return (source.abs().double().amax() * (1 + 2.0**-8)).expand(source.shape)


KEPT_VALUES: Final[dict[str, KeptValues]] = {"float16": Float16Values(), "2bit": TwoBitValues()}
