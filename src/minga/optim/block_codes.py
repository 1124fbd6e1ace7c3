"""Numbers as 8 bits each, with one scale for each block: what AdamW and LAMB keep in a quarter of the memory.

Theory of operation (Dettmers et al. 2022, arXiv:2110.02861, block-wise dynamic quantisation). A block of numbers x has
the scale s = max |x|, and each x / s becomes the number of the nearest of 256 values, the lower one of two that are
equally near. The values lie denser towards 0: for i = 0 … 6 the centres of 2^i equal bins of [0.1, 1], times 10^(i-6),
with both signs, and 0 and 1; without signs 2^(i+1) bins. So 0 stays exactly 0, and what has no gradient does not drift.
Without signs nothing else becomes 0: an update divides by the root of such a number, and by eps alone where it is 0.

A maximum, one division, comparisons with constants, a look-up and one multiplication: equal bits on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

import torch
from torch import Tensor

DECADES: Final = 7
DEFAULT_BLOCK: Final = 4096
"""Elements of a block. Smaller blocks are closer to the numbers and take 4 bytes each."""
DEFAULT_LEAST_NUMEL: Final = 65_536
"""Tensors of fewer elements stay as they are: there is little to save in them, and more to lose."""


def code_values(*, signed: bool) -> list[float]:
    """The 256 values, ascending; float64."""
    found = [0.0, 1.0]
    for decade in range(DECADES):
        bins = 2 ** (decade if signed else decade + 1)
        for index in range(bins):
            centre = (0.1 + 0.9 * (2 * index + 1) / (2 * bins)) / 10 ** (DECADES - 1 - decade)
            found += [centre, -centre] if signed else [centre]
    return sorted(found)


@cache
def _tables(device: torch.device, signed: bool) -> tuple[Tensor, Tensor]:
    """The values, and what lies half-way between neighbours; float32."""
    values = torch.tensor(code_values(signed=signed), dtype=torch.float64, device="cpu")
    middles = (values[1:] + values[:-1]) / 2
    return values.to(torch.float32).to(device), middles.to(torch.float32).to(device)


def blocks_of(numel: int, block: int) -> int:
    """Blocks of a tensor with so many elements; the last one may be short."""
    return -(-numel // block)


def encode(
    values: Sequence[Tensor], codes: Sequence[Tensor], scales: Sequence[Tensor], *, block: int, signed: bool
) -> None:
    """Write the codes (uint8 [n]) and scales (float32 [blocks]) of each tensor (float32 [n]), in few kernels for all.

    Each begins with a block.
    """
    _, middles = _tables(values[0].device, signed)
    rows = _in_blocks(values, block)
    scale = torch.maximum(rows.amax(dim=1), rows.amin(dim=1).neg_())
    scale.abs_()  # which zero is the largest of both kinds depends on how a kernel cuts its work
    divisor = torch.where(scale == 0, torch.ones_like(scale), scale)
    found = torch.bucketize(rows / divisor[:, None], middles, out_int32=True).to(torch.uint8)
    if not signed:
        found = torch.maximum(found, (rows > 0).to(torch.uint8))
    torch._foreach_copy_(list(codes), _cut(found, values))
    torch._foreach_copy_(list(scales), torch.split(scale, [part.numel() for part in scales]))


def decode(codes: Sequence[Tensor], scales: Sequence[Tensor], *, block: int, signed: bool) -> list[Tensor]:
    """The values (float32 [n]) of the codes and scales of each tensor, in few kernels for all."""
    table, _ = _tables(codes[0].device, signed)
    values = table[_in_blocks(codes, block).int()].mul_(torch.cat(list(scales))[:, None])
    return _cut(values, codes)


def _in_blocks(parts: Sequence[Tensor], block: int) -> Tensor:
    """All as [blocks, elements], with zeros behind each that ends within a block."""
    blocks = sum(blocks_of(part.numel(), block) for part in parts)
    if len(parts) == 1 and parts[0].numel() == blocks * block:
        return parts[0].view(blocks, block)
    joined = torch.zeros(blocks, block, dtype=parts[0].dtype, device=parts[0].device)
    torch._foreach_copy_(_cut(joined, parts), list(parts))
    return joined


def _cut(rows: Tensor, parts: Sequence[Tensor]) -> list[Tensor]:
    """The places in such rows that belong to each of `parts`."""
    wholes = torch.split(rows, [blocks_of(part.numel(), rows.shape[1]) for part in parts])
    return [whole.view(-1)[: part.numel()] for whole, part in zip(wholes, parts, strict=True)]
