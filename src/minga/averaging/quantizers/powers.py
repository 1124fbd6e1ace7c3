"""e3m0 and natural: elements as signs and powers of two, with a scale for each block or without.

    name       settings                    bytes on the wire
    e3m0       block (32, 64, 128)         ceil(n / block) bfloat16 scales, then ceil(n / 2) bytes of two codes each
    natural                                n bytes of exponents, then ceil(n / 8) bytes of signs, the first one lowest

both also with rounding=stochastic. A magnitude y is rounded to one of its neighbours among the powers of two, or to 0
below the smallest: to the nearest, ties to the larger, or to the larger with the probability that makes y the expected
value. One sum of integers does that: half of the mantissa's range, or noise, is added to the bits of the float32, and
what is carried into the exponent counts.

**e3m0** has the scale s of `blocks.py` and the powers 2**-6 to 1 of it; codes are 0, or 7 plus the exponent, and 8 more
below 0. |decoded - x| is at most |x| / 3, or 2**-7 s where that is more; at random |x|, or 2**-6 s.

    nearest      delta = 9 / 8
    stochastic   zeta = 9 / 8

although an element below 2**-7 s may be lost as a whole. That is 8 / 9 2**-14 s**2 more than the constants allow it.
The largest element of the block becomes s, and is off by 2**-7 of itself at most: that is a**2 / 9 less than they
allow, which makes up for 2,000 others.

**natural** has the powers 2**-126 to 2**127 and no scale; exponents are those of float32. |decoded - x| is at most
|x| / 3 or 2**-127, and half of what is above 2**127; at random |x| or 2**-126. delta = 9 / 8, and zeta = 9 / 8 + 2**-16
for noise of 16 bits, both up to 2**127 and but for what is below 2**-126.

Decoding is exact, and encoding what was decoded gives the same values again, in both ways of rounding.

Source: exponential dithering to base 2 (natural compression, Horváth et al. 2019); delta is (b + 1)**2 / 4 b for base b
(Beznosikov et al. 2020). E3M0 is the type of the outer gradients of Streaming DiLoCo (Douillard et al. 2025).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import numpy as np
import torch

from minga.averaging.codecs.interface import Codec, InvalidEncodingError, largest_magnitude, require_magnitude
from minga.averaging.codecs.tensor_bytes import CACHED_ELEMENTS
from minga.averaging.quantizers.blocks import BlockScaledCodec, Noise, Rounding, noise_of, rounding_setting
from minga.core.spec.fields import Section, described

_MANTISSA_BITS: Final = 23
_HALF: Final = 1 << 22
_LARGEST_ADDED: Final = (1 << _MANTISSA_BITS) - 1
_ONE: Final = 127
_SMALLEST: Final = 2.0**-6
_LARGEST_POWER: Final = 254
_DRAWN_STEP: Final = 1 << 7
"""16 bits of noise in 23 of a mantissa."""


class E3m0Settings(Section):
    """How many elements share a scale, and how they are rounded."""

    block: Literal[32, 64, 128] = described(128, "elements that share one scale", "32, 64 or 128")
    rounding: Rounding = rounding_setting()


class E3m0Codec(BlockScaledCodec):
    """A sign and three bits of exponent; see the module."""

    Settings, name, top = E3m0Settings, "e3m0", 1.0

    def __init__(self, settings: E3m0Settings = E3m0Settings()) -> None:  # noqa: B008  # frozen
        self.settings: E3m0Settings = settings
        powers = torch.exp2(torch.arange(8, dtype=torch.float32, device="cpu") - 7)
        powers[0] = 0.0
        super().__init__(settings.block, torch.cat([powers, -powers]), settings.rounding)

    def delta(self, numel: int) -> float | None:  # noqa: ARG002
        """See the module; of rounding at random the expected error is bounded."""
        return 8 / 7 if self.draws else 9 / 8

    def zeta(self, numel: int) -> float | None:  # noqa: ARG002
        """See the module."""
        return 9 / 8 if self.draws else None

    def _unit_error(self, magnitude: torch.Tensor) -> torch.Tensor:
        return magnitude.clamp(min=_SMALLEST) if self.draws else (magnitude / 3).clamp(min=_SMALLEST / 2)

    def _codes(self, scaled: torch.Tensor, noise: Noise | None) -> torch.Tensor:
        signs = torch.signbit(scaled)
        magnitudes = scaled.abs_()
        # Magnitudes below the smallest power move to the binade of it, as its distance from 0, and all others up one.
        magnitudes += magnitudes.clamp(min=_SMALLEST)
        codes = _exponents(magnitudes, noise).sub_(_ONE - 6).to(torch.uint8)
        return codes.bitwise_or_(signs.to(torch.uint8).mul_(8))


class NaturalSettings(Section):
    """How elements are rounded."""

    rounding: Rounding = rounding_setting()


class NaturalCodec(Codec):
    """A sign and eight bits of exponent; see the module."""

    Settings, name, block_elements = NaturalSettings, "natural", 8

    def __init__(self, settings: NaturalSettings = NaturalSettings()) -> None:  # noqa: B008  # frozen
        self.settings: NaturalSettings = settings
        self.draws = self.differs_by_peer = settings.rounding == "stochastic"

    def max_encoded_bytes(self, numel: int) -> int:
        """Nine bits for each element."""
        return numel + -(-numel // 8)

    def max_error(self, source: torch.Tensor) -> torch.Tensor:
        """A third of the element, or all of it at random; see the module for the smallest and the largest ones."""
        magnitude = source.double().abs()
        if self.draws:
            return magnitude.clamp(min=2.0**-126)
        return torch.maximum((magnitude / 3).clamp(min=2.0**-127), magnitude - 2.0**127)

    def delta(self, numel: int) -> float | None:
        """See the module; of rounding at random the expected error is bounded."""
        return 1 / (2 - zeta) if (zeta := self.zeta(numel)) else 9 / 8

    def zeta(self, numel: int) -> float | None:  # noqa: ARG002
        """See the module."""
        return 9 / 8 + 2.0**-16 if self.draws else None

    def _encode(self, source: torch.Tensor, raw: torch.Tensor, limit: float, seed: int) -> int:
        require_magnitude(largest_magnitude(source), limit)
        noise = noise_of(seed) if self.draws else None
        for start in range(0, source.numel(), CACHED_ELEMENTS):
            piece = source[start : start + CACHED_ELEMENTS]
            exponents = _exponents(piece.abs(), noise).clamp_(max=_LARGEST_POWER)
            raw[start : start + piece.numel()] = exponents
        raw[source.numel() :] = torch.from_numpy(np.packbits(source.numpy() < 0, bitorder="little"))
        return raw.numel()

    def _check(self, raw: torch.Tensor, numel: int, limit: float) -> None:
        largest = torch.tensor(min(limit, 2.0**127), dtype=torch.float32, device="cpu")
        bits = int(largest.view(torch.int32)) + (_LARGEST_ADDED if self.draws else _HALF)
        highest = bits >> _MANTISSA_BITS
        if int(raw[:numel].max()) > highest:
            raise InvalidEncodingError(f"an exponent is above {highest - _ONE}")
        if numel % 8 and int(raw[-1]) >> numel % 8:
            raise InvalidEncodingError("there are more signs than elements")

    def _decode(self, raw: torch.Tensor, target: torch.Tensor) -> None:
        for start, values in self._pieces(raw, target.numel()):
            target[start : start + values.numel()] = values

    def _decode_add(self, raw: torch.Tensor, accumulator: torch.Tensor, weight: float) -> None:
        for start, values in self._pieces(raw, accumulator.numel()):
            accumulator[start : start + values.numel()].add_(values, alpha=weight)

    def _pieces(self, raw: torch.Tensor, numel: int) -> Iterator[tuple[int, torch.Tensor]]:
        """The values of one cache-sized piece after the other, and where it begins: signs and exponents of float32."""
        for start in range(0, numel, CACHED_ELEMENTS):
            stop = min(start + CACHED_ELEMENTS, numel)
            packed = raw[numel + start // 8 : numel + -(-stop // 8)].numpy()
            signs = torch.from_numpy(np.unpackbits(packed, count=stop - start, bitorder="little"))
            bits = raw[start:stop].to(torch.int32) << _MANTISSA_BITS
            yield start, bits.bitwise_or_(signs.to(torch.int32) << 31).view(torch.float32)


def _exponents(magnitudes: torch.Tensor, noise: Noise | None) -> torch.Tensor:
    """The biased exponents, int32, that float32 magnitudes are rounded to; they are overwritten."""
    bits = magnitudes.view(torch.int32)
    if noise is None:
        bits += _HALF
    else:
        bits += noise(bits.numel()).to(torch.int32).mul_(_DRAWN_STEP).add_(_HALF + _DRAWN_STEP // 2)
    return bits.bitwise_right_shift_(_MANTISSA_BITS)
