"""int8: blocks of 256 elements, the last may be shorter, as whole numbers from -127 to 127 times one scale each.

    bytes on the wire: ceil(n / 256) bfloat16 scales, then n int8

A block with largest magnitude a has the scale s = a / 127, at least 2**-126, rounded to bfloat16, and stores q, which
is x / s rounded: to nearest, ties to even, or at random (`blocks.py`) with `rounding=stochastic`.

To nearest, s is too. That moves a / s into 126.5 < a / s < 127.5, so q stays within +-127: nothing is ever clipped,
however far it lies from the rest. q s needs 15 significant bits, so that it is exact in float32 and encoding a decoded
slice again gives the same bytes. At random, s is rounded up.

|decoded - x| is at most s / 2, or s at random. With t = (1 + 2**-7)**2 (n - 1) / 127**2 of a block of n elements

    nearest      delta = (1 + t / 4) / (1 - 2**-16)            1.0041
    stochastic   zeta = (1 + sqrt(1 + t)) / 2 + 2**-14         1.0041
                 the squared error is at most (zeta - 1) |x|**2

for blocks with a / 127 of at least 2**-126.
"""

from __future__ import annotations

import math
from typing import Final

import torch

from minga.averaging.codecs.interface import FLOAT32_MAX, Codec, InvalidEncodingError, require_magnitude
from minga.averaging.codecs.tensor_bytes import load, scratch, store
from minga.averaging.quantizers.blocks import (
    SCALE_SLACK,
    SMALLEST_SCALE,
    Rounding,
    add_noise,
    blocks_of,
    noise_of,
    rounded_up,
    rounding_setting,
)
from minga.core.spec.fields import Section

BLOCK_ELEMENTS: Final = 256
_LARGEST_SCALE: Final = 2.0**121 + 2.0**114  # the largest bfloat16 s with 127 * s <= FLOAT32_MAX


class Int8Settings(Section):
    """How elements are rounded."""

    rounding: Rounding = rounding_setting()


class BlockwiseInt8Codec(Codec):
    """Blocks of 256 elements as 8-bit integers times one bfloat16 scale each; see the module for the proof."""

    Settings, name, block_elements = Int8Settings, "int8", BLOCK_ELEMENTS

    def __init__(self, settings: Int8Settings = Int8Settings()) -> None:  # noqa: B008  # frozen
        self.settings: Int8Settings = settings
        self.draws = self.differs_by_peer = settings.rounding == "stochastic"

    def max_encoded_bytes(self, numel: int) -> int:
        """One byte per element and two per block begun."""
        return numel + 2 * _blocks(numel)

    def max_error(self, source: torch.Tensor) -> torch.Tensor:
        """Half the scale of the element's block, and the rounding of the division; at random all of the scale."""
        padded = torch.zeros(_blocks(source.numel()) * self.block_elements, dtype=torch.float64, device="cpu")
        padded[: source.numel()] = source.abs()
        largest = padded.view(-1, self.block_elements).amax(dim=1)
        scales = (largest / 127 * (1 + SCALE_SLACK)).clamp(min=SMALLEST_SCALE)
        return (scales * (1.0 if self.draws else 0.50001)).repeat_interleave(self.block_elements)[: source.numel()]

    def delta(self, numel: int) -> float | None:
        """See the module; of rounding at random the expected error is bounded."""
        return 1 / (2 - zeta) if (zeta := self.zeta(numel)) else (1 + self._t(numel) / 4) / (1 - 2.0**-16)

    def zeta(self, numel: int) -> float | None:
        """See the module."""
        return (1 + math.sqrt(1 + self._t(numel))) / 2 + 2.0**-14 if self.draws else None

    def _t(self, numel: int) -> float:
        return (1 + SCALE_SLACK) ** 2 * max(0, min(numel, BLOCK_ELEMENTS) - 1) / 127**2

    def _encode(self, source: torch.Tensor, raw: torch.Tensor, limit: float, seed: int) -> int:
        scales = torch.empty(_blocks(source.numel()), dtype=torch.float32, device="cpu")
        for start, rows in blocks_of(source, BLOCK_ELEMENTS):
            out = scales[start : start + len(rows)]
            torch.maximum(rows.amax(dim=1), rows.amin(dim=1).neg_(), out=out)
        require_magnitude(float(scales.max()), limit)  # max propagates NaN
        rounded = self._rounded(scales)
        store(rounded, raw[: 2 * len(scales)], torch.bfloat16)
        scales.copy_(rounded)
        values, noise = raw[2 * len(scales) :].view(torch.int8), noise_of(seed) if self.draws else None
        for (start, rows), (_, target) in zip(
            blocks_of(source, BLOCK_ELEMENTS), blocks_of(values, BLOCK_ELEMENTS), strict=True
        ):
            quotient = scratch(rows.numel()).view(rows.shape)
            torch.div(rows, scales[start : start + len(rows), None], out=quotient)
            if noise is not None:
                add_noise(quotient.clamp_(-127, 127), noise)
            target.copy_(quotient.round_())
        return raw.numel()

    def _check(self, raw: torch.Tensor, numel: int, limit: float) -> None:
        low, high = torch.aminmax(load(raw[: 2 * _blocks(numel)], torch.bfloat16))
        # The scale that the encoder gives to a block whose largest magnitude is the limit.
        highest = float(self._rounded(torch.tensor([min(limit, FLOAT32_MAX)], dtype=torch.float32, device="cpu")))
        if not (float(low) >= SMALLEST_SCALE and float(high) <= highest):
            raise InvalidEncodingError(
                f"block scales from {float(low):g} to {float(high):g}; {SMALLEST_SCALE:g} to {highest:g} is accepted"
            )
        if int(raw[2 * _blocks(numel) :].view(torch.int8).min()) == -128:
            raise InvalidEncodingError("an 8-bit value is -128, which no encoder produces")

    def _decode(self, raw: torch.Tensor, target: torch.Tensor) -> None:
        scales, values = self._split(raw, target.numel())
        for (start, rows), (_, out) in zip(
            blocks_of(values, BLOCK_ELEMENTS), blocks_of(target, BLOCK_ELEMENTS), strict=True
        ):
            torch.mul(rows, scales[start : start + len(rows), None], out=out)

    def _decode_add(self, raw: torch.Tensor, accumulator: torch.Tensor, weight: float) -> None:
        scales, values = self._split(raw, accumulator.numel())
        scales.mul_(weight)
        for (start, rows), (_, out) in zip(
            blocks_of(values, BLOCK_ELEMENTS), blocks_of(accumulator, BLOCK_ELEMENTS), strict=True
        ):
            widened = scratch(rows.numel()).view(rows.shape).copy_(rows)
            out.addcmul_(widened, scales[start : start + len(rows), None])

    def _rounded(self, largest: torch.Tensor) -> torch.Tensor:
        """The scales, bfloat16, of blocks with these largest magnitudes, which are overwritten."""
        scales = largest.div_(127).clamp_(SMALLEST_SCALE, _LARGEST_SCALE)
        return rounded_up(scales).clamp_(max=_LARGEST_SCALE) if self.draws else scales.to(torch.bfloat16)

    def _split(self, raw: torch.Tensor, numel: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The scales as new float32 and the values as a view of int8."""
        blocks = _blocks(numel)
        return load(raw[: 2 * blocks], torch.bfloat16).float(), raw[2 * blocks :].view(torch.int8)


def _blocks(numel: int) -> int:
    return -(-numel // BLOCK_ELEMENTS)
