"""Codecs that send each element by itself as a floating-point number, and the codec of a choice.

All numbers on the wire are little-endian. n is the number of elements.

    name       bytes on the wire                                  |decoded - x| at most
    float32    n float32                                          0
    float16    n float16, clamped to +-65504                      max(2**-11 |x|, 2**-25) inside the clamp
    bfloat16   n bfloat16, clamped to its largest finite number   2**-8 |x| (2**-134 for subnormals)

All rounding is to nearest, ties to even, and encoding a decoded slice again gives the same bytes. delta is 1 of float32
and 1 / (1 - 2**-16) of bfloat16; float16 has none, since it rounds all that is below 2**-25 to 0.

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
    "WEIGHT_LIMIT",
    "CastCodec",
    "Codec",
    "CodecPair",
    "InvalidEncodingError",
    "codec",
    "is_finite",
]


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

    def delta(self, numel: int) -> float | None:  # noqa: ARG002
        """See the module."""
        return {torch.float32: 1.0, torch.bfloat16: 1 / (1 - 2.0**-16)}.get(self._dtype)

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
        rounded = float(torch.tensor(min(limit, self._largest), dtype=torch.float32, device="cpu").to(self._dtype))
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
