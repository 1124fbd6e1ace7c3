"""Checks of the constants that a codec promises, and of descent with what it leaves out.

Source: the classes B1, B2 and B3 of "On Biased Compression for Distributed Learning" (Beznosikov et al. 2020), and the
three functions there on which the naive mean of compressed gradients diverges.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import torch

from minga.averaging.codecs.dense import CastCodec
from minga.averaging.codecs.interface import Codec, CodecPair
from minga.averaging.codecs.layout import Chunk
from minga.averaging.codecs.residual import Residual
from minga.averaging.codecs.seeds import RoundSeeds
from minga.testing.codecs.cases import decoded_of
from minga.testing.violation import require

SEEDS: Final = 24
DRAWS, MOST_ELEMENTS = 4096, 1 << 19
SIGMAS: Final = 4.0
NEGLIGIBLE: Final = 2.0**-120
"""Elements may be off by so much whatever the constants say: the smallest scales are not much smaller."""
DIRECTIONS: Final = ((-3.0, 2.0, 2.0), (2.0, -3.0, 2.0), (2.0, 2.0, -3.0))


class _Moments(NamedTuple):
    """Of all draws, relative to |x|**2: the inner product with x, |C(x)|**2, |C(x) - x|**2."""

    product: torch.Tensor
    square: torch.Tensor
    error: torch.Tensor


def distributions(size: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Named vectors of `size` elements that codecs keep to their constants on."""
    chance = torch.Generator().manual_seed(20_200_227)
    normal = torch.randn(size, generator=chance)
    yield "normal", normal
    yield "Laplace", torch.rand(size, generator=chance).clamp(min=1e-30).log() * normal.sign()
    degrees = torch.randn(3, size, generator=chance).square().mean(0).sqrt()
    yield "Student's t of 3 degrees", normal / degrees
    yield "constant", torch.full((size,), -0.3)
    yield "alternating", torch.tensor([0.7, -0.7]).repeat(size // 2 + 1)[:size]
    alone = torch.zeros(size)
    alone[size // 3] = 5.0
    yield "one of many", alone
    outlier = normal * 0.01
    outlier[size // 2] = 3.0
    yield "one far out", outlier
    yield "subnormal", normal * 2.0**-140
    yield "1e30", normal * 1e30
    yield "1e-30", normal * 1e-30


def check_contraction(codec: Codec) -> None:
    """The error is within `delta`, and so are the products and squares that follow from it; of a codec that draws, the
    means of these are.
    """
    size = 3 * codec.block_elements + 5
    if (delta := codec.delta(size)) is None:
        return
    require(delta >= 1.0, codec, f"delta is {delta}, less than 1")
    for name, source in distributions(size):
        found = _moments(codec, source)
        slack = size * NEGLIGIBLE**2 / float(source.double().square().sum())
        within = (
            ("B3", _mean(found.error, 1.0), 1 - 1 / delta),
            ("B2, below", 1 / (2 * delta), _mean(found.product, -1.0)),
            ("B2, above", _mean(found.square, 1.0), 2 * _mean(found.product, -1.0)),
            ("B1, below", 1 / (4 * delta**2), _mean(found.square, -1.0)),
        )
        for what, low, high in within:
            holds = low <= high + slack + 1e-12
            require(holds, codec, f"{name}: {what}: {low} is above {high}, with delta {delta}")


def check_unbiased(codec: Codec) -> None:
    """With `zeta` the mean of many draws is the vector, and their squares are within it; a codec that always does the
    same has a bias.
    """
    require(codec.draws or codec.zeta(1) is None, codec, "zeta without drawing")
    block = codec.block_elements * -(-64 // codec.block_elements)
    if (zeta := codec.zeta(block)) is None:
        return
    copies = min(DRAWS, max(1, MOST_ELEMENTS // block))
    for name, source in distributions(block):
        if name == "subnormal":
            continue
        drawn = [_decoded(codec, source.repeat(copies), seed).view(copies, block) for seed in range(DRAWS // copies)]
        decoded = torch.cat(drawn).double()
        off = (decoded.mean(0) - source.double()).abs()
        doubt = (SIGMAS + 1) * decoded.std(0) / len(decoded) ** 0.5
        allowed = doubt + 10 * codec.max_error(source) / len(decoded) + 2.0**-16 * float(source.abs().max())
        require(bool((off <= allowed).all()), codec, f"{name}: the mean of {len(decoded)} draws is off by {off.max()}")
        squares = decoded.square().sum(1) / source.double().square().sum()
        require(_mean(squares, 1.0) <= zeta, codec, f"{name}: the mean square is {squares.mean()} of its own")


def check_error_feedback(codec: Codec) -> None:
    """Three peers descend on functions whose naive mean of compressed gradients may diverge: with residuals of their
    own they arrive.
    """
    if codec.needs_residual:
        # At 0.05 a gradient that comes up to three steps late is at the edge of what these functions bear.
        left = distance_after(codec, with_residual=True, rate=0.03, steps=300)
        require(left < 5e-2, codec, f"with residuals, descent ended {left} from where it began at 1")


def distance_after(codec: Codec, *, with_residual: bool, rate: float = 0.03, steps: int = 450) -> float:
    """How far from the optimum three peers are after so many steps, of 1 at the begin.

    Each has the function <v, x>**2 + |x|**2 / 4 with its own v, and sends its gradient of three elements.
    """
    plain = CastCodec("float32", torch.float32)
    chunk = Chunk(0, 0, 3, CodecPair(codec, plain), codec.max_encoded_bytes(3), plain.max_encoded_bytes(3))
    peers = [(torch.tensor(direction, dtype=torch.float64), Residual(3)) for direction in DIRECTIONS]
    place = torch.full((3,), 3**-0.5, dtype=torch.float64)
    room = memoryview(bytearray(chunk.upload_bytes))
    for step in range(steps):
        total = torch.zeros(3)
        for direction, residual in peers:
            gradient = (2 * direction * (direction @ place) + place / 2).float()
            sealed = residual.seal(gradient, 1, step, RoundSeeds(step=step))
            codec.decode_add(sealed.encode(chunk, room), total, 1 / 3)
            if with_residual:
                sealed.settle([(chunk, True)], total)
            else:
                sealed.take_back()
        place -= rate * total.double()
        if not float(place.norm()) < 1e6:
            break
    return float(place.norm())


def _moments(codec: Codec, source: torch.Tensor) -> _Moments:
    decoded = torch.stack([_decoded(codec, source, seed) for seed in range(SEEDS if codec.draws else 1)]).double()
    exact = source.double()
    unit = exact.square().sum()
    return _Moments((decoded @ exact) / unit, decoded.square().sum(1) / unit, (decoded - exact).square().sum(1) / unit)


def _mean(values: torch.Tensor, side: float) -> float:
    """The mean, moved down by its uncertainty for `side` 1, up for -1."""
    doubt = SIGMAS * float(values.std()) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return float(values.mean()) - side * doubt


def _decoded(codec: Codec, source: torch.Tensor, seed: int) -> torch.Tensor:
    room = bytearray(codec.max_encoded_bytes(source.numel()))
    return decoded_of(codec, room[: codec.encode(source, room, seed=seed)], source.numel())
