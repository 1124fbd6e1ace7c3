"""What quantizers share: blocks with one scale each, whose elements are small codes times that scale, and rounding.

    bytes on the wire: ceil(n / block) bfloat16 scales, then the codes: one byte each, or two in a byte, the first below

A block with largest magnitude a has the scale s = a / top, rounded up to bfloat16 and at least 2**-126, where `top` is
the largest value of a code. So no element is beyond ±top s, but for blocks within 1 % of the largest float32, whose
scale cannot be rounded up: they lose less than 1 % of their largest elements. a / s is above top (1 - 2**-7), which a
codec has to round to `top`: then the decoded block has the same scale again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Final, Literal, Protocol

import numpy as np
import torch

from minga.averaging.codecs.interface import FLOAT32_MAX, Codec, InvalidEncodingError, require_magnitude
from minga.averaging.codecs.tensor_bytes import CACHED_ELEMENTS, load, scratch, store
from minga.core.spec.fields import choice

# ---- Rounding to nearest, or at random so that the expected value is exact.
#
# Rounding at random is rounding to nearest after noise has been added that is uniform in ±1/2 of a step. The noise
# comes from the counter-based generator Philox, whose output is specified, so that a seed stands for the same bytes on
# every machine. It has 16 bits, symmetric about 0: the expected value is exact to 2**-17 of a step, and what lies on a
# step stays there.


Rounding = Literal["nearest", "stochastic"]
DRAWS_PER_WORD: Final = 4


class Noise(Protocol):
    """Noise for one element after the other."""

    def __call__(self, numel: int) -> torch.Tensor:
        """The next `numel` values as int16; (k + 1/2) / 65536 is uniform in ±1/2."""
        ...


def rounding_setting() -> Rounding:
    """The declaration of a setting `rounding`."""
    meaning = "stochastic rounds at random: no bias, twice the squared error"
    declared: Rounding = choice("nearest", meaning, "nearest", "stochastic")
    return declared


def noise_of(seed: int) -> Noise:
    """The noise of a seed of 64 bits."""
    generator = np.random.Philox(key=seed)

    def draw(numel: int) -> torch.Tensor:
        words = generator.random_raw(-(-numel // DRAWS_PER_WORD)).astype("<u8", copy=False)
        return torch.from_numpy(words.view("<i2").astype(np.int16, copy=False)[:numel])

    return draw


def add_noise(scaled: torch.Tensor, noise: Noise) -> torch.Tensor:
    """Add noise to values whose steps are 1, in place."""
    drawn = noise(scaled.numel()).to(torch.float32).add_(0.5)
    return scaled.view(-1).add_(drawn, alpha=2.0**-16).view(scaled.shape)


# ---- Blocks with one scale each.


SMALLEST_SCALE: Final = 2.0**-126
SCALE_SLACK: Final = 2.0**-7
"""A scale is less than this fraction above what it is rounded from."""


def blocks_of(vector: torch.Tensor, block: int) -> list[tuple[int, torch.Tensor]]:
    """Views of `vector` as (first block, [blocks, elements]), cache-sized; a short last block is a piece by itself."""
    whole = vector.numel() // block
    step = max(1, CACHED_ELEMENTS // block)
    matrix = vector[: whole * block].view(whole, block)
    pieces = [(start, matrix[start : start + step]) for start in range(0, whole, step)]
    if vector.numel() % block:
        pieces.append((whole, vector[whole * block :].view(1, -1)))
    return pieces


def rounded_up(values: torch.Tensor) -> torch.Tensor:
    """Positive float32 values as the next bfloat16 that is not smaller; what is beyond all of them is infinite."""
    bits = values.contiguous().view(torch.int32).add(0xFFFF) & ~0xFFFF
    return bits.view(torch.float32).bfloat16()


class BlockScaledCodec(Codec):
    """See the module. A codec of this kind says what its codes stand for, and finds the code of each element.

    `values` are those of all codes, float32: 16 of them, or 256; any numbers for codes that no encoder writes. The
    code 0 fills the half of a byte that is left over at the end.
    """

    top: float

    def __init__(self, block: int, values: torch.Tensor, rounding: Rounding = "nearest") -> None:
        self.block_elements = block
        self.draws = self.differs_by_peer = rounding == "stochastic"
        self._per_byte = 2 if values.numel() == 16 else 1
        codes = torch.arange(256, device="cpu")
        columns = [values[codes & 15], values[codes >> 4]] if self._per_byte == 2 else [values]
        self._table = torch.stack(columns, 1).numpy()
        self._largest_scale = _truncated(FLOAT32_MAX / self.top)

    @abstractmethod
    def _codes(self, scaled: torch.Tensor, noise: Noise | None) -> torch.Tensor:
        """The codes, uint8, of elements within ±top, which may be overwritten."""

    @abstractmethod
    def _unit_error(self, magnitude: torch.Tensor) -> torch.Tensor:
        """The largest error of elements with these magnitudes, float64, where the scale is 1: the larger of a multiple
        of the magnitude and a constant.
        """

    def _check_codes(self, codes: torch.Tensor) -> None:
        """Raise `InvalidEncodingError` for bytes that no encoder writes."""

    def max_encoded_bytes(self, numel: int) -> int:
        """Two bytes for each block begun, and the codes."""
        return 2 * self._blocks(numel) + -(-numel // self._per_byte)

    def max_error(self, source: torch.Tensor) -> torch.Tensor:
        """A multiple of the element or of its block's scale, see the codec; and what the largest scale cuts off."""
        padded = torch.zeros(self._blocks(source.numel()) * self.block_elements, dtype=torch.float64, device="cpu")
        padded[: source.numel()] = source.abs()
        rows = padded.view(-1, self.block_elements)
        scales = (rows.amax(dim=1, keepdim=True) / self.top * (1 + SCALE_SLACK)).clamp(min=SMALLEST_SCALE)
        cut_off = (rows - self.top * self._largest_scale).clamp(min=0)
        error = self._unit_error(rows / scales) * scales * (1 + 2.0**-16) + cut_off
        return error.view(-1)[: source.numel()]

    def _encode(self, source: torch.Tensor, raw: torch.Tensor, limit: float, seed: int) -> int:
        largest = torch.empty(self._blocks(source.numel()), dtype=torch.float32, device="cpu")
        for start, rows in blocks_of(source, self.block_elements):
            out = largest[start : start + len(rows)]
            torch.maximum(rows.amax(dim=1), rows.amin(dim=1).neg_(), out=out)
        require_magnitude(float(largest.max()), limit)  # max propagates NaN
        rounded = self._scales(largest)
        store(rounded, raw[: 2 * len(rounded)], torch.bfloat16)
        scales, codes = rounded.float()[:, None], raw[2 * len(rounded) :]
        noise = noise_of(seed) if self.draws else None
        at = 0
        for start, rows in blocks_of(source, self.block_elements):
            scaled = scratch(rows.numel()).view(rows.shape)
            torch.div(rows, scales[start : start + len(rows)], out=scaled)
            packed = self._packed(self._codes(scaled.view(-1).clamp_(-self.top, self.top), noise))
            codes[at : at + len(packed)] = packed
            at += len(packed)
        return raw.numel()

    def _check(self, raw: torch.Tensor, numel: int, limit: float) -> None:
        cut = 2 * self._blocks(numel)
        low, high = torch.aminmax(load(raw[:cut], torch.bfloat16).float())
        highest = float(self._scales(torch.tensor([min(limit, FLOAT32_MAX)], dtype=torch.float32, device="cpu")))
        if not (float(low) >= SMALLEST_SCALE and float(high) <= highest):
            raise InvalidEncodingError(
                f"block scales from {float(low):g} to {float(high):g}; {SMALLEST_SCALE:g} to {highest:g} is accepted"
            )
        self._check_codes(raw[cut:])
        if numel % self._per_byte and int(raw[-1]) >> 4:
            raise InvalidEncodingError("the last byte holds an element too many")

    def _decode(self, raw: torch.Tensor, target: torch.Tensor) -> None:
        for values, scales, out in self._pieces(raw, target):
            torch.mul(values, scales, out=out)

    def _decode_add(self, raw: torch.Tensor, accumulator: torch.Tensor, weight: float) -> None:
        for values, scales, out in self._pieces(raw, accumulator):
            out.addcmul_(values, scales * weight)

    def _pieces(self, raw: torch.Tensor, target: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
        """For each piece of `target` what its codes stand for, the scales, and itself."""
        cut, at = 2 * self._blocks(target.numel()), 0
        scales, codes = load(raw[:cut], torch.bfloat16).float()[:, None], raw[cut:]
        for start, out in blocks_of(target, self.block_elements):
            count = -(-out.numel() // self._per_byte)
            values = np.take(self._table, codes[at : at + count].numpy(), axis=0, mode="clip")
            at += count
            yield (
                torch.from_numpy(values).view(-1)[: out.numel()].view(out.shape),
                scales[start : start + len(out)],
                out,
            )

    def _packed(self, codes: torch.Tensor) -> torch.Tensor:
        if self._per_byte == 1:
            return codes
        if len(codes) % 2:
            codes = torch.nn.functional.pad(codes, (0, 1))
        return codes[0::2] | codes[1::2] << 4

    def _scales(self, largest: torch.Tensor) -> torch.Tensor:
        """The bfloat16 scales of blocks with these largest magnitudes."""
        quotients = (largest / self.top).clamp_(min=SMALLEST_SCALE)
        return rounded_up(quotients).clamp_(max=self._largest_scale)

    def _blocks(self, numel: int) -> int:
        return -(-numel // self.block_elements)


def _truncated(value: float) -> float:
    """The largest bfloat16 that is not above a positive number."""
    bits = torch.tensor([value], dtype=torch.float32, device="cpu").view(torch.int32) & ~0xFFFF
    return float(bits.view(torch.float32))
