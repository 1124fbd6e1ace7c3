"""Checks of a codec against what it must never let through: hostile bytes, and numbers that would spoil a sum."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from minga.averaging.codecs.interface import (
    CONTRIBUTION_LIMIT,
    FLOAT32_MAX,
    WEIGHT_LIMIT,
    Codec,
    InvalidEncodingError,
)
from minga.core.errors import NonFiniteError
from minga.testing.codecs.cases import accepts, decoded_of, encoded_of, refuses
from minga.testing.violation import require


def check_local_non_finite(codec: Codec) -> None:
    """`encode` raises `NonFiniteError` for NaN, infinity and magnitudes above the limit, wherever they are."""
    for size in (1, 255, 256, 257, 1000, 65_536 + 300):
        for position in {0, size // 2, size - 1}:
            for value in (math.nan, math.inf, -math.inf):
                source = torch.zeros(size)
                source[position] = value
                buffer = bytearray(b"\x55" * codec.max_encoded_bytes(size))
                refuses(codec, NonFiniteError, f"{value} at {position}", codec.encode, source, buffer)
                require(set(buffer) == {0x55}, codec, "encode wrote to its target before it raised")
    buffer = bytearray(codec.max_encoded_bytes(3))
    codec.encode(torch.tensor([1.0, -10.0, 2.0]), buffer, limit=10.0)
    above = torch.tensor([1.0, -10.001, 2.0])
    refuses(codec, NonFiniteError, "a value above the limit", codec.encode, above, buffer, limit=10.0)


def check_limit_is_consistent(codec: Codec) -> None:
    """What `encode` accepts under a limit, `decode` and `decode_add` accept under the same limit."""
    normal = torch.randn(700, generator=torch.Generator().manual_seed(11)).clamp(-1, 1)
    normal[13] = -1.0
    for limit in (1e-30, 1.0, 0.3, 7.7, 1e9, CONTRIBUTION_LIMIT, FLOAT32_MAX):
        source = (normal * limit).clamp(-limit, limit)
        buffer = bytearray(codec.max_encoded_bytes(700))
        exact = float(source.abs().max())
        encoded = buffer[: codec.encode(source, buffer, limit=exact)]
        what = f"700 elements whose largest magnitude is the limit of both, {exact:g}"
        accepts(codec, what, codec.decode, encoded, torch.zeros(700), limit=exact)
        accepts(codec, what, codec.decode_add, encoded, torch.zeros(700), 0.5, limit=exact)
    too_large = torch.full((700,), 2 * CONTRIBUTION_LIMIT)
    decoded = decoded_of(codec, encoded_of(codec, too_large), 700)
    if float(decoded.max()) > CONTRIBUTION_LIMIT:
        encoded = encoded_of(codec, too_large)
        refuses(
            codec,
            InvalidEncodingError,
            "a contribution so large that sums overflow",
            codec.decode_add,
            encoded,
            torch.zeros(700),
            1.0,
        )


def check_hostile_bytes(codec: Codec) -> None:
    """Whatever bytes come, decoding raises `InvalidEncodingError` with nothing written, or yields finite values; and it
    takes no more memory for that than twice what it decodes to, or 1 MiB where that is more.
    """
    chance = torch.Generator().manual_seed(13)
    size = 600
    count = codec.max_encoded_bytes(size)
    measured = [bytes([fill]) * count for fill in (0, 1, 0x7F, 0x80, 0xFF)]
    cases = [bytes([fill]) * count for fill in range(256)]
    cases += [bytes(torch.randint(0, 256, (count,), generator=chance).tolist()) for _ in range(50)]
    valid = encoded_of(codec, torch.randn(size, generator=chance))
    if codec.has_fixed_size:  # all prefixes are refused for their size alone
        ends = range(0, len(valid), 97)
    else:
        ends = range(len(valid))
        measured += [bytes([fill]) * stop for fill in (0, 0xFF) for stop in range(1, count, 29)]
    cases += [bytes(valid[:stop]) for stop in ends]
    for _ in range(300):
        flipped, bit = bytearray(valid), int(torch.randint(0, 8 * len(valid), (), generator=chance))
        flipped[bit // 8] ^= 1 << bit % 8
        cases.append(bytes(flipped))
    for position in range(0, len(valid), 7):
        flipped = bytearray(valid)
        flipped[position] = 0xFF - flipped[position]
        cases.append(bytes(flipped))
    # Counts and lengths in the bytes, if there are any, at their largest in every place.
    huge = [
        bytes(valid[:at]) + b"\xff" * 8 + bytes(valid[at + 8 :])
        for at in range(0, len(valid) - 8, max(5, len(valid) // 200))
    ]
    measured += [bytes(valid), *huge[:40], *huge[40::20]]
    for case in cases + huge:
        _decode_hostile(codec, case, size)
    with _Allocations() as allocations:
        for case in measured:
            _decode_hostile(codec, case, size)
    most = max(2 * 4 * size, 1 << 20)
    require(allocations.largest <= most, codec, f"decoding {size} elements took {allocations.largest} bytes at once")


def _decode_hostile(codec: Codec, case: bytes, size: int) -> None:
    accumulator, target = torch.full((size,), 7.0), torch.full((size,), 7.0)
    try:
        codec.decode_add(case, accumulator, WEIGHT_LIMIT)
    except InvalidEncodingError:
        require(bool((accumulator == 7.0).all()), codec, "decode_add changed the sum before it raised")
    require(bool(accumulator.isfinite().all()), codec, "hostile bytes made a sum infinite or NaN")
    try:
        codec.decode(case, target)
    except InvalidEncodingError:
        require(bool((target == 7.0).all()), codec, "decode changed its target before it raised")
    require(bool(target.isfinite().all()), codec, "hostile bytes decoded to infinity or NaN")


class _Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the largest tensor that anything inside makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.largest = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for each in found if isinstance(found, tuple | list) else (found,):
            if isinstance(each, torch.Tensor) and not each.is_meta:
                self.largest = max(self.largest, each.untyped_storage().nbytes())
        return found


def check_weights(codec: Codec) -> None:
    """Weights that are not finite or beyond +-2**31 are refused."""
    buffer = encoded_of(codec, torch.ones(5))
    for weight in (math.nan, math.inf, -math.inf, 2.0**31 + 1):
        refuses(codec, ValueError, f"weight {weight}", codec.decode_add, buffer, torch.ones(5), weight)
