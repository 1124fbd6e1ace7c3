"""sign: the sign of each element, and the mean magnitude of its block. For uploads, with a residual.

    bytes on the wire: ceil(n / 256) bfloat16 means, then ceil(n / 8) bytes of signs, the first one lowest, 1 below 0

A block of n elements (256, or fewer at the end) decodes to ±m, where m = |x|_1 / n, summed in float32 pairwise in a
fixed order and rounded to nearest. |decoded - x| is at most the larger of |x| and (1 + 2**-8) m, and

    |decoded - x|**2 = |x|**2 - (1 - u**2) |x|_1**2 / n  with |u| <= 2**-8, so delta = n / (1 - 2**-16)

at worst, where one element is all there is; normal values have 1.57 = pi / 2. Encoding a decoded slice gives the same
values again, and the same bytes but for signs of zeros.

Source: scaled signs with error feedback (Karimireddy et al. 2019), here by blocks instead of tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import torch

from minga.averaging.codecs.interface import (
    FLOAT32_MAX,
    Codec,
    InvalidEncodingError,
    largest_magnitude,
    require_magnitude,
)
from minga.averaging.codecs.tensor_bytes import load, scratch, store
from minga.averaging.quantizers.blocks import blocks_of

BLOCK_ELEMENTS: Final = 256
_LARGEST_MEAN: Final = float(torch.finfo(torch.bfloat16).max)


class SignCodec(Codec):
    """See the module."""

    name, block_elements, needs_residual = "sign", BLOCK_ELEMENTS, True
    usual_download, fewest_elements = "int8", BLOCK_ELEMENTS

    def max_encoded_bytes(self, numel: int) -> int:
        """Two bytes for each block begun, and one bit for each element."""
        return 2 * _blocks(numel) + -(-numel // 8)

    def max_error(self, source: torch.Tensor) -> torch.Tensor:
        """The larger of the element and of the block's mean magnitude."""
        numel, blocks = source.numel(), _blocks(source.numel())
        padded = torch.zeros(blocks * BLOCK_ELEMENTS, dtype=torch.float64)
        padded[:numel] = source.abs()
        sizes = torch.full((blocks,), BLOCK_ELEMENTS, dtype=torch.float64)
        if numel % BLOCK_ELEMENTS:
            sizes[-1] = numel % BLOCK_ELEMENTS
        means = padded.view(-1, BLOCK_ELEMENTS).sum(1) / sizes * (1 + 2.0**-8) + 2.0**-133
        return torch.maximum(means.repeat_interleave(BLOCK_ELEMENTS), padded)[:numel]

    def delta(self, numel: int) -> float | None:
        """The number of elements that share a mean."""
        return min(max(numel, 1), BLOCK_ELEMENTS) / (1 - 2.0**-16)

    def _encode(self, source: torch.Tensor, raw: torch.Tensor, limit: float, seed: int) -> int:  # noqa: ARG002
        require_magnitude(largest := largest_magnitude(source), limit)
        unit = 1 / BLOCK_ELEMENTS if largest > FLOAT32_MAX / BLOCK_ELEMENTS else 1.0  # so that no sum overflows
        means = torch.empty(_blocks(source.numel()), dtype=torch.float32)
        for start, rows in blocks_of(source, BLOCK_ELEMENTS):
            means[start : start + len(rows)] = _sums(rows, unit).div_(rows.shape[1]).div_(unit)
        store(means.clamp_(max=_LARGEST_MEAN), raw[: 2 * len(means)], torch.bfloat16)
        signs = np.packbits(source.numpy() < 0, bitorder="little")
        raw[2 * len(means) :] = torch.from_numpy(signs)
        return raw.numel()

    def _check(self, raw: torch.Tensor, numel: int, limit: float) -> None:
        cut = 2 * _blocks(numel)
        means = load(raw[:cut], torch.bfloat16).float()
        highest = float(torch.tensor(min(limit, _LARGEST_MEAN), dtype=torch.float32).bfloat16())
        low, high = torch.aminmax(means)
        if not (float(low) >= 0 and float(high) <= highest) or bool(torch.signbit(means).any()):
            raise InvalidEncodingError(f"means from {float(low):g} to {float(high):g}; 0 to {highest:g} is accepted")
        if numel % 8 and int(raw[-1]) >> numel % 8:
            raise InvalidEncodingError("there are more signs than elements")

    def _decode(self, raw: torch.Tensor, target: torch.Tensor) -> None:
        for signs, means, out in _pieces(raw, target):
            torch.mul(signs, means, out=out)

    def _decode_add(self, raw: torch.Tensor, accumulator: torch.Tensor, weight: float) -> None:
        for signs, means, out in _pieces(raw, accumulator):
            out.addcmul_(signs, means * weight)


def _sums(rows: torch.Tensor, unit: float) -> torch.Tensor:
    """The sums of the magnitudes of [blocks, elements], times `unit`, the halves of a row added again and again: no
    machine adds them in another order.
    """
    width = 1 << (rows.shape[1] - 1).bit_length()
    if width != rows.shape[1]:
        rows = torch.nn.functional.pad(rows, (0, width - rows.shape[1]))
    sums = torch.abs(rows, out=scratch(rows.numel()).view(rows.shape))
    if unit != 1.0:
        sums.mul_(unit)
    while width > 1:
        width //= 2
        sums = sums[:, :width] + sums[:, width:]
    return sums[:, 0]


def _pieces(raw: torch.Tensor, target: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """For each piece of `target` the signs as 1 and -1, the means, and itself."""
    cut, at = 2 * _blocks(target.numel()), 0
    means, bits = load(raw[:cut], torch.bfloat16).float()[:, None], raw[cut:].numpy()
    for start, out in blocks_of(target, BLOCK_ELEMENTS):
        count = -(-out.numel() // 8)
        below = np.unpackbits(bits[at : at + count], count=out.numel(), bitorder="little")
        at += count
        signs = torch.from_numpy(below).view(out.shape).float().mul_(-2).add_(1)
        yield signs, means[start : start + len(out)], out


def _blocks(numel: int) -> int:
    return -(-numel // BLOCK_ELEMENTS)
