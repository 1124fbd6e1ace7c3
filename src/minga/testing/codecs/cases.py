"""What the checks of codecs share: vectors that are hard on codecs, and encoding and decoding with a look at sizes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from typing import Final

import torch

from minga.averaging.codecs.interface import FLOAT32_MAX, Codec, InvalidEncodingError
from minga.testing.violation import Violation, require

SIZES: Final = (0, 1, 2, 3, 127, 128, 255, 256, 257, 511, 513, 1000, 4095, 65_535, 65_536, 65_537, 131_329)


def sample_vectors() -> Iterator[tuple[str, torch.Tensor]]:
    """Named finite float32 vectors that are hard on codecs: sizes, magnitudes, outliers, constants, subnormals."""
    chance = torch.Generator().manual_seed(20_240_229)
    for size in SIZES:
        yield f"{size} normal values", torch.randn(size, generator=chance)
    normal = torch.randn(1000, generator=chance)
    for exponent in (-149, -140, -126, -100, -24, -14, 15, 16, 64, 100, 126):
        scaled = (normal.double() * 2.0**exponent).clamp(-FLOAT32_MAX, FLOAT32_MAX).float()
        yield f"normal values times 2**{exponent}", scaled
    yield "magnitudes over 60 decades", torch.pow(10.0, torch.rand(5000, generator=chance) * 60 - 30)
    for value in (0.0, -0.0, 1.0, -1.0, 0.1, 65_504.0, 65_520.0, -1e30, FLOAT32_MAX, -FLOAT32_MAX, 1e-45, -(2.0**-126)):
        yield f"constant {value:g}", torch.full((300,), value)
    normal = torch.randn(1000, generator=chance)
    yield "Laplace values", torch.rand(1000, generator=chance).log() * normal.sign()
    degrees = torch.randn(3, 1000, generator=chance).square().mean(0).sqrt()
    yield "Student's t of 3 degrees", torch.randn(1000, generator=chance) / degrees
    yield "alternating signs", torch.tensor([1.5, -1.5]).repeat(500)
    alone = torch.zeros(1000)
    alone[611] = -7.0
    yield "one value among zeros", alone
    outlier = torch.randn(2048, generator=chance)
    outlier[777] = 1000.0
    yield "one value a thousand standard deviations out", outlier
    extremes = torch.zeros(600)
    extremes[[0, 255, 256, 599]] = torch.tensor([FLOAT32_MAX, -FLOAT32_MAX, 1e-45, 3.0])
    yield "the largest and the smallest magnitude as neighbours", extremes


def encoded_of(codec: Codec, source: torch.Tensor) -> bytearray:
    """The bytes that the codec makes of a vector, after a check of their number."""
    target = bytearray(codec.max_encoded_bytes(source.numel()))
    size = codec.encode(source, target)
    exact = size == len(target) or (not codec.has_fixed_size and 0 < size < len(target))
    require(exact, codec, f"encode took {size} of {len(target)} bytes")
    return target[:size]


def decoded_of(codec: Codec, encoded: bytearray | bytes, numel: int) -> torch.Tensor:
    """The `numel` values that the codec reads from bytes."""
    target = torch.full((numel,), math.nan)
    accepts(codec, f"{numel} elements", codec.decode, encoded, target)
    return target


def accepts(codec: Codec, what: str, call: Callable[..., object], *arguments: object, **named: object) -> None:
    """Raise `Violation` if the call refuses bytes that the codec itself has encoded, of `what`."""
    try:
        call(*arguments, **named)
    except InvalidEncodingError as error:
        raise Violation(f"{codec.name}: refuses what it encoded itself, {what}: {error}") from error


def refuses(
    codec: Codec, error: type[Exception], what: str, call: Callable[..., object], *arguments: object, **named: object
) -> None:
    """Raise `Violation` unless the call raises `error`; `what` is what it has to refuse."""
    try:
        call(*arguments, **named)
    except error:
        return
    except Exception as other:
        raise Violation(f"{codec.name}: {what} raised {type(other).__name__}, not {error.__name__}") from other
    raise Violation(f"{codec.name}: {what} was accepted")


def digest_of_samples(codec: Codec) -> str:
    """A digest of what the codec makes of all `sample_vectors`."""
    digest = hashlib.blake2b()
    for _, source in sample_vectors():
        digest.update(encoded_of(codec, source))
    return digest.hexdigest()
