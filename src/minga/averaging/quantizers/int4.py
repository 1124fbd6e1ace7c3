"""int4: blocks of 32, 64 or 128 elements as whole numbers from -7 to 7 times one scale each.

    setting    default     bytes on the wire
    block      64          ceil(n / block) bfloat16 scales, then ceil(n / 2) bytes of two codes each
    rounding   nearest     the same

With the scale s of `blocks.py` an element x becomes q s, where q is x / s rounded to nearest, ties to even, or at
random. A code is q mod 16; no encoder writes -8.

|decoded - x| is at most s / 2, or s at random, where s < 2**-126 + (1 + 2**-7) a / 7 in a block with largest magnitude
a. With t = (1 + 2**-7)**2 (block - 1) / 49, which is the worst case of all elements but one at half a step:

    nearest      delta = (1 + t / 4) / (1 - 2**-14)            1.161, 1.327, 1.658 for 32, 64, 128
    stochastic   zeta = (1 + sqrt(1 + t)) / 2 + 2**-9          1.143, 1.261, 1.455
                 the squared error is at most (zeta - 1) |x|**2

The scale costs a little of that: with an exact one they would be 1.158, 1.321, 1.648 and 1.139, 1.256, 1.448. They hold
for blocks with a / 7 of at least 2**-126.

Decoding gives q s exactly, and encoding that again the same bytes, if rounding is to nearest.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import torch

from minga.averaging.codecs.interface import InvalidEncodingError
from minga.averaging.quantizers.blocks import (
    SCALE_SLACK,
    BlockScaledCodec,
    Noise,
    Rounding,
    add_noise,
    rounding_setting,
)
from minga.core.spec.fields import Section, described

LARGEST_LEVEL: Final = 7


class Int4Settings(Section):
    """How many elements share a scale, and how they are rounded."""

    block: Literal[32, 64, 128] = described(64, "elements that share one scale", "32, 64 or 128")
    rounding: Rounding = rounding_setting()


class Int4Codec(BlockScaledCodec):
    """See the module."""

    Settings, name, top = Int4Settings, "int4", float(LARGEST_LEVEL)

    def __init__(self, settings: Int4Settings = Int4Settings()) -> None:  # noqa: B008  # frozen
        self.settings: Int4Settings = settings
        levels = torch.arange(16, dtype=torch.float32, device="cpu")
        super().__init__(settings.block, torch.where(levels > LARGEST_LEVEL, levels - 16, levels), settings.rounding)

    def delta(self, numel: int) -> float | None:
        """See the module; of rounding at random the expected error is bounded."""
        return 1 / (2 - zeta) if (zeta := self.zeta(numel)) else (1 + self._t(numel) / 4) / (1 - 2.0**-14)

    def zeta(self, numel: int) -> float | None:
        """See the module."""
        return (1 + math.sqrt(1 + self._t(numel))) / 2 + 2.0**-9 if self.draws else None

    def _t(self, numel: int) -> float:
        return (1 + SCALE_SLACK) ** 2 * max(0, min(numel, self.block_elements) - 1) / LARGEST_LEVEL**2

    def _unit_error(self, magnitude: torch.Tensor) -> torch.Tensor:
        return torch.full_like(magnitude, 1.0 if self.draws else 0.5)

    def _codes(self, scaled: torch.Tensor, noise: Noise | None) -> torch.Tensor:
        if noise is not None:
            add_noise(scaled, noise)
        return scaled.round_().to(torch.int8).view(torch.uint8) & 15

    def _check_codes(self, codes: torch.Tensor) -> None:
        turned = codes ^ 0x88  # what was 8 is 0
        if int(turned.amin()) < 16 or int((turned & 15).amin()) == 0:
            raise InvalidEncodingError("a level is -8, which no encoder writes")
