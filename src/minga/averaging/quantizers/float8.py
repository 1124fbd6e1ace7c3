"""float8: blocks of elements as 8-bit floating-point numbers with 4 bits of exponent (E4M3), times one scale each.

    setting    default     bytes on the wire
    block      128         ceil(n / block) bfloat16 scales, then n numbers of the type float8_e4m3fn (OCP)

With the scale s of `blocks.py` an element x becomes q s, where q is x / s rounded to the nearest E4M3 number, ties to
even; the largest is 448. |decoded - x| is at most |x| / 17, or 2**-10 s where that is more: near 0 numbers are 2**-9
apart. So delta = 1 / (1 - 1 / 289 - block 2**-37), that is 1.0035.

Decoding gives q s exactly, and encoding that again the same bytes.
"""

from __future__ import annotations

from typing import Final, Literal

import torch

from minga.averaging.codecs.interface import InvalidEncodingError
from minga.averaging.quantizers.blocks import BlockScaledCodec, Noise
from minga.core.spec.fields import Section, described

_NOT_A_NUMBER: Final = 0x7F


class Float8Settings(Section):
    """How many elements share a scale."""

    block: Literal[32, 64, 128, 256] = described(128, "elements that share one scale", "32, 64, 128 or 256")


class Float8Codec(BlockScaledCodec):
    """See the module."""

    Settings, name, top = Float8Settings, "float8", 448.0

    def __init__(self, settings: Float8Settings = Float8Settings()) -> None:  # noqa: B008  # frozen
        self.settings: Float8Settings = settings
        numbers = torch.arange(256, dtype=torch.uint8, device="cpu").view(torch.float8_e4m3fn).float()
        super().__init__(settings.block, numbers.nan_to_num(0.0))

    def delta(self, numel: int) -> float | None:
        """See the module."""
        return 1 / (1 - 1 / 289 - min(numel, self.block_elements) * 2.0**-37)

    def _unit_error(self, magnitude: torch.Tensor) -> torch.Tensor:
        return (magnitude / 17).clamp(min=2.0**-10)

    def _codes(self, scaled: torch.Tensor, noise: Noise | None) -> torch.Tensor:  # noqa: ARG002
        return scaled.to(torch.float8_e4m3fn).view(torch.uint8)

    def _check_codes(self, codes: torch.Tensor) -> None:
        if int((codes & _NOT_A_NUMBER).max()) == _NOT_A_NUMBER:
            raise InvalidEncodingError("a value is NaN")
