"""How slices of a float32 vector travel: codecs turn them into bytes and back.

A codec has no state. These here are dense: their size depends on the number of elements alone. All numbers
on the wire are little-endian. n is the number of elements.

    name       bytes on the wire                                  |decoded - x| at most
    float32    n float32                                          0
    float16    n float16, clamped to +-65504                      max(2**-11 |x|, 2**-25) inside the clamp
    bfloat16   n bfloat16, clamped to its largest finite number   2**-8 |x| (2**-134 for subnormals)
    int8       ceil(n / 256) bfloat16 scales, then n int8         half the scale of the block

All rounding is to nearest, ties to even. **int8** cuts the slice into blocks of 256 elements, the last may be shorter.
A block with largest magnitude a has scale s = bfloat16(a / 127), at least 2**-126, and stores q = round(x / s).
Rounding s moves a / s into 126.5 < a / s < 127.5, so q stays within +-127: nothing is ever clipped, however far it
lies from the rest; and q * s needs 15 significant bits, so that it is exact in float32 and encoding a decoded slice
again gives the same bytes. float32, float16 and bfloat16 have that second property trivially.

Work is done by torch kernels, which release the GIL, on slices small enough for the cache of one core.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import torch

from minga.averaging.codecs.interface import (
    CONTRIBUTION_LIMIT,
    FLOAT32_MAX,
    WEIGHT_LIMIT,
    Codec,
    CodecPair,
    InvalidEncodingError,
    is_finite,
    largest_magnitude,
    require_magnitude,
)
from minga.averaging.codecs.registry import CODECS
from minga.averaging.codecs.tensor_bytes import CACHED_ELEMENTS, load, scratch, store
from minga.core.errors import ConfigurationError
from minga.core.spec.choices import canonical, resolved

__all__ = [
    "CONTRIBUTION_LIMIT",
    "FLOAT32_MAX",
    "INT8_BLOCK_ELEMENTS",
    "WEIGHT_LIMIT",
    "BlockwiseInt8Codec",
    "CastCodec",
    "Codec",
    "CodecPair",
    "InvalidEncodingError",
    "codec",
    "is_finite",
]

INT8_BLOCK_ELEMENTS: Final = 256

_SMALLEST_SCALE: Final = 2.0**-126
_LARGEST_SCALE: Final = 2.0**121 + 2.0**114  # the largest bfloat16 s with 127 * s <= FLOAT32_MAX


class CastCodec(Codec):
    """Each element by itself as a narrower (or the same) floating-point type."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.name = name
        self.is_identity = dtype == torch.float32
        self._dtype = dtype
        self._largest = float(torch.finfo(dtype).max)

    def max_encoded_bytes(self, numel: int) -> int:
        """`numel` times the size of the type."""
        return numel * self._dtype.itemsize

    def max_error(self, source: torch.Tensor) -> torch.Tensor:
        """Half a unit in the last place, and what the clamp cuts off."""
        magnitude = source.double().abs()
        if self._dtype == torch.float32:
            return torch.zeros_like(magnitude)
        info = torch.finfo(self._dtype)
        half_unit = (magnitude * info.eps / 2).clamp(min=info.smallest_normal * info.eps / 2)
        return torch.maximum(half_unit, magnitude - self._largest)

    def _encode(self, source: torch.Tensor, raw: torch.Tensor, limit: float, seed: int) -> int:  # noqa: ARG002
        largest = largest_magnitude(source)
        require_magnitude(largest, limit)
        if largest <= self._largest:
            store(source, raw, self._dtype)
            return raw.numel()
        size = self._dtype.itemsize
        for start in range(0, source.numel(), CACHED_ELEMENTS):
            piece = source[start : start + CACHED_ELEMENTS]
            clamped = torch.clamp(piece, -self._largest, self._largest, out=scratch(piece.numel()))
            store(clamped, raw[start * size : (start + piece.numel()) * size], self._dtype)
        return raw.numel()

    def _check(self, raw: torch.Tensor, numel: int, limit: float) -> None:  # noqa: ARG002
        largest = largest_magnitude(load(raw, self._dtype))
        if largest <= limit:
            return
        # What the largest acceptable value becomes when it is rounded to this type.
        rounded = float(torch.tensor(min(limit, self._largest), dtype=torch.float32).to(self._dtype))
        if not largest <= rounded:
            raise InvalidEncodingError(f"a value has the magnitude {largest:g}; at most {limit:g} is accepted")

    def _decode(self, raw: torch.Tensor, target: torch.Tensor) -> None:
        target.copy_(load(raw, self._dtype))

    def _decode_add(self, raw: torch.Tensor, accumulator: torch.Tensor, weight: float) -> None:
        values = load(raw, self._dtype)
        if values.dtype == torch.float32:
            accumulator.add_(values, alpha=weight)
            return
        for start in range(0, values.numel(), CACHED_ELEMENTS):
            piece = values[start : start + CACHED_ELEMENTS]
            widened = scratch(piece.numel()).copy_(piece)
            accumulator[start : start + CACHED_ELEMENTS].add_(widened, alpha=weight)


class BlockwiseInt8Codec(Codec):
    """Blocks of 256 elements as 8-bit integers times one bfloat16 scale each; see the module for the proof."""

    name = "int8"
    block_elements = INT8_BLOCK_ELEMENTS

    def max_encoded_bytes(self, numel: int) -> int:
        """One byte per element and two per block begun."""
        return numel + 2 * _blocks(numel)

    def max_error(self, source: torch.Tensor) -> torch.Tensor:
        """Half the scale of the element's block, and the rounding of the division."""
        padded = torch.zeros(_blocks(source.numel()) * self.block_elements, dtype=torch.float64)
        padded[: source.numel()] = source.abs()
        largest = padded.view(-1, self.block_elements).amax(dim=1)
        scales = (largest / 127 * (1 + 2.0**-8)).clamp(min=_SMALLEST_SCALE)
        return (scales * 0.50001).repeat_interleave(self.block_elements)[: source.numel()]

    def _encode(self, source: torch.Tensor, raw: torch.Tensor, limit: float, seed: int) -> int:  # noqa: ARG002
        scales = torch.empty(_blocks(source.numel()), dtype=torch.float32)
        for start, rows in _rows(source):
            out = scales[start : start + len(rows)]
            torch.maximum(rows.amax(dim=1), rows.amin(dim=1).neg_(), out=out)
        require_magnitude(float(scales.max()), limit)  # max propagates NaN
        scales.div_(127).clamp_(_SMALLEST_SCALE, _LARGEST_SCALE)
        rounded = scales.to(torch.bfloat16)
        store(rounded, raw[: 2 * len(scales)], torch.bfloat16)
        scales.copy_(rounded)
        values = raw[2 * len(scales) :].view(torch.int8)
        for (start, rows), (_, target) in zip(_rows(source), _rows(values), strict=True):
            quotient = scratch(rows.numel()).view(rows.shape)
            torch.div(rows, scales[start : start + len(rows), None], out=quotient)
            target.copy_(quotient.round_())
        return raw.numel()

    def _check(self, raw: torch.Tensor, numel: int, limit: float) -> None:
        low, high = torch.aminmax(load(raw[: 2 * _blocks(numel)], torch.bfloat16))
        # The scale that the encoder gives to a block whose largest magnitude is the limit.
        highest = float(torch.tensor(min(limit / 127, _LARGEST_SCALE), dtype=torch.float32).to(torch.bfloat16))
        if not (float(low) >= _SMALLEST_SCALE and float(high) <= max(highest, _SMALLEST_SCALE)):
            raise InvalidEncodingError(
                f"block scales from {float(low):g} to {float(high):g}; {_SMALLEST_SCALE:g} to {highest:g} is accepted"
            )
        if int(raw[2 * _blocks(numel) :].view(torch.int8).min()) == -128:
            raise InvalidEncodingError("an 8-bit value is -128, which no encoder produces")

    def _decode(self, raw: torch.Tensor, target: torch.Tensor) -> None:
        scales, values = self._split(raw, target.numel())
        for (start, rows), (_, out) in zip(_rows(values), _rows(target), strict=True):
            torch.mul(rows, scales[start : start + len(rows), None], out=out)

    def _decode_add(self, raw: torch.Tensor, accumulator: torch.Tensor, weight: float) -> None:
        scales, values = self._split(raw, accumulator.numel())
        scales.mul_(weight)
        for (start, rows), (_, out) in zip(_rows(values), _rows(accumulator), strict=True):
            widened = scratch(rows.numel()).view(rows.shape).copy_(rows)
            out.addcmul_(widened, scales[start : start + len(rows), None])

    def _split(self, raw: torch.Tensor, numel: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The scales as new float32 and the values as a view of int8."""
        blocks = _blocks(numel)
        return load(raw[: 2 * blocks], torch.bfloat16).float(), raw[2 * blocks :].view(torch.int8)


def _blocks(numel: int) -> int:
    return -(-numel // INT8_BLOCK_ELEMENTS)


def _rows(vector: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
    """Views of `vector` as (first block, [blocks, elements]), cache-sized; a short last block is a piece by itself."""
    whole = vector.numel() // INT8_BLOCK_ELEMENTS
    step = CACHED_ELEMENTS // INT8_BLOCK_ELEMENTS
    matrix = vector[: whole * INT8_BLOCK_ELEMENTS].view(whole, INT8_BLOCK_ELEMENTS)
    pieces = [(start, matrix[start : start + step]) for start in range(0, whole, step)]
    if vector.numel() % INT8_BLOCK_ELEMENTS:
        pieces.append((whole, vector[whole * INT8_BLOCK_ELEMENTS :].view(1, -1)))
    return pieces


float32: Final = partial(CastCodec, "float32", torch.float32)
float16: Final = partial(CastCodec, "float16", torch.float16)
bfloat16: Final = partial(CastCodec, "bfloat16", torch.bfloat16)

_made: Final[dict[str, Codec]] = {}


def codec(choice: str) -> Codec:
    """The codec of a choice such as "int8" or "int4(block=32)", always the same object for the same canonical spelling.

    Raises `ConfigurationError` if no installed package brings it, if what it brings goes by another name, or if it
    cannot have these settings.
    """
    spelling = choice if isinstance(choice, str) and choice in _made else canonical(CODECS, choice)
    if spelling not in _made:
        found = resolved(CODECS, spelling)
        made = found.maker(found.settings) if found.has_settings else found.maker()
        if not isinstance(made, Codec) or made.choice != spelling:
            raise ConfigurationError(f"codec: what an installed package brings as {spelling!r} is {made!r}")
        _made.setdefault(spelling, made)
    return _made[spelling]
