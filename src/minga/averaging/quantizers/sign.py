"""sign: the sign of each element, and one or two mean magnitudes of its block. For uploads, with a residual.

    setting      default     bytes on the wire, of bytes the lowest bit first
    magnitudes   1           ceil(n / 256) bfloat16 means, then a bit for each element, 1 below 0
                 2           twice as many means, those of small magnitudes first, then two bits for each element: its
                             sign, and whether its magnitude is large

A block of n elements (256, or fewer at the end) decodes to ±m, where m = |x|_1 / n. With two magnitudes those above m
are large, and each of both kinds decodes to the mean of its own. Sums are in float32, pairwise in a fixed order, and
means rounded to nearest. |decoded - x| is at most the largest magnitude of the block, times 1 + 2**-8, and

    |decoded - x|**2 = |x|**2 - (1 - u**2) sum of k m_k**2  with |u| <= 2**-8, for k elements that share the mean m_k

One mean leaves most where one element is all there is: delta = n / (1 - 2**-16). Two leave no more than one, so that
this bounds both. Normal values have 1.57 = pi / 2 with one magnitude and 1.15 with two. Encoding a decoded slice gives
the same values again, and the same bytes but for signs of zeros and for which magnitudes are large where both means
are rounded to one.

Source: scaled signs with error feedback (Karimireddy et al. 2019), here by blocks instead of tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

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
from minga.core.spec.fields import Section, described

BLOCK_ELEMENTS: Final = 256
_LARGEST_MEAN: Final = float(torch.finfo(torch.bfloat16).max)


class SignSettings(Section):
    """How many magnitudes a block has."""

    magnitudes: Literal[1, 2] = described(
        1, "mean magnitudes of a block: one of all elements, or one of small and one of large", "1 or 2"
    )


class SignCodec(Codec):
    """See the module."""

    Settings, name, block_elements, needs_residual = SignSettings, "sign", BLOCK_ELEMENTS, True
    fewest_elements = BLOCK_ELEMENTS

    def __init__(self, settings: SignSettings = SignSettings()) -> None:  # noqa: B008  # frozen
        self.settings: SignSettings = settings
        self.usual_download = "int8" if settings.magnitudes == 1 else "int4"
        self._bits = settings.magnitudes  # as many as there are means
        self._signs = _signs_by_byte(self._bits)

    def max_encoded_bytes(self, numel: int) -> int:
        """Two bytes for each mean of the blocks begun, and one or two bits for each element."""
        return self._bits * 2 * _blocks(numel) + -(-numel * self._bits // 8)

    def max_error(self, source: torch.Tensor) -> torch.Tensor:
        """The larger of the element and of the block's mean, or with two of them its largest magnitude."""
        numel, blocks = source.numel(), _blocks(source.numel())
        padded = torch.zeros(blocks * BLOCK_ELEMENTS, dtype=torch.float64, device="cpu")
        padded[:numel] = source.abs()
        rows = padded.view(-1, BLOCK_ELEMENTS)
        sizes = torch.full((blocks,), BLOCK_ELEMENTS, dtype=torch.float64, device="cpu")
        if numel % BLOCK_ELEMENTS:
            sizes[-1] = numel % BLOCK_ELEMENTS
        highest = rows.sum(1) / sizes if self._bits == 1 else rows.amax(1)
        highest = highest * (1 + 2.0**-8) + 2.0**-133
        return torch.maximum(highest.repeat_interleave(BLOCK_ELEMENTS), padded)[:numel]

    def delta(self, numel: int) -> float | None:
        """The number of elements of a block."""
        return min(max(numel, 1), BLOCK_ELEMENTS) / (1 - 2.0**-16)

    def _encode(self, source: torch.Tensor, raw: torch.Tensor, limit: float, seed: int) -> int:  # noqa: ARG002
        require_magnitude(largest := largest_magnitude(source), limit)
        unit = 1 / BLOCK_ELEMENTS if largest > FLOAT32_MAX / BLOCK_ELEMENTS else 1.0  # so that no sum overflows
        means = torch.empty((self._bits, _blocks(source.numel())), dtype=torch.float32, device="cpu")
        codes = np.empty((source.numel(), self._bits), dtype=np.bool_)
        np.less(source.numpy(), 0, out=codes[:, 0])
        at = 0
        for start, rows in blocks_of(source, BLOCK_ELEMENTS):
            magnitudes = torch.abs(rows, out=scratch(rows.numel()).view(rows.shape)).mul_(unit)
            mean = _sums(magnitudes) / rows.shape[1]
            if self._bits == 2:
                large, mean = _two_means(magnitudes, mean)
                np.not_equal(large.view(-1).numpy(), 0, out=codes[at : at + rows.numel(), 1])
            means[:, start : start + len(rows)] = mean
            at += rows.numel()
        cut = 2 * means.numel()
        store(means.div_(unit).clamp_(max=_LARGEST_MEAN).view(-1), raw[:cut], torch.bfloat16)
        raw[cut:] = torch.from_numpy(np.packbits(codes.reshape(-1), bitorder="little"))
        return raw.numel()

    def _check(self, raw: torch.Tensor, numel: int, limit: float) -> None:
        cut = 2 * self._bits * _blocks(numel)
        means = load(raw[:cut], torch.bfloat16).float().view(self._bits, -1)
        highest = float(torch.tensor(min(limit, _LARGEST_MEAN), dtype=torch.float32, device="cpu").bfloat16())
        low, high = torch.aminmax(means)
        if not (float(low) >= 0 and float(high) <= highest) or bool(torch.signbit(means).any()):
            raise InvalidEncodingError(f"means from {float(low):g} to {float(high):g}; 0 to {highest:g} is accepted")
        if bool((means[0] > means[-1]).any()):
            raise InvalidEncodingError("the mean of small magnitudes is above that of large ones")
        if (used := numel * self._bits % 8) and int(raw[-1]) >> used:
            raise InvalidEncodingError("there are more signs than elements")

    def _decode(self, raw: torch.Tensor, target: torch.Tensor) -> None:
        for terms, out in self._pieces(raw, target):
            for index, (signs, means) in enumerate(terms):
                out.addcmul_(signs, means) if index else torch.mul(signs, means, out=out)

    def _decode_add(self, raw: torch.Tensor, accumulator: torch.Tensor, weight: float) -> None:
        for terms, out in self._pieces(raw, accumulator):
            for signs, means in terms:
                out.addcmul_(signs, means * weight)

    def _pieces(
        self, raw: torch.Tensor, target: torch.Tensor
    ) -> Iterator[tuple[list[tuple[torch.Tensor, torch.Tensor]], torch.Tensor]]:
        """Pieces of `target`, with the signs of the elements that have a mean and these means, for each of the means:
        one term of each element is not 0.
        """
        cut, at = 2 * self._bits * _blocks(target.numel()), 0
        means, codes = load(raw[:cut], torch.bfloat16).float().view(self._bits, -1, 1), raw[cut:].numpy()
        for start, out in blocks_of(target, BLOCK_ELEMENTS):
            count = -(-out.numel() * self._bits // 8)
            taken = [np.take(table, codes[at : at + count], axis=0, mode="clip") for table in self._signs]
            at += count
            signs = [torch.from_numpy(each).view(-1)[: out.numel()].view(out.shape) for each in taken]
            yield [(sign, mean[start : start + len(out)]) for sign, mean in zip(signs, means, strict=True)], out


def _signs_by_byte(bits: int) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    """For each mean and byte the signs, 1 and -1, of the byte's elements that have this mean, and 0 for others."""
    every_byte = np.arange(256, dtype=np.uint8)[:, None]
    codes = np.unpackbits(every_byte, axis=1, bitorder="little").reshape(256, -1, bits)
    signs, kind = np.where(codes[..., 0], -1, 1), codes[..., 1] if bits == 2 else 0
    return [np.where(kind == each, signs, 0).astype(np.float32) for each in range(bits)]


def _two_means(magnitudes: torch.Tensor, mean: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which magnitudes [blocks, elements] are above their block's mean, as 1 and 0, and the means of the others and of
    these, [2, blocks]; both are equal where nothing is above.
    """
    large = torch.gt(magnitudes, mean[:, None], out=torch.empty_like(magnitudes))
    count = large.sum(1)
    large.mul_(count[:, None] < magnitudes.shape[1])  # all are nearly equal, and their mean was rounded down
    count = torch.where(count < magnitudes.shape[1], count, 0.0)
    above = magnitudes * large
    low, high = _sums(magnitudes - above), _sums(above)
    low, high = low / (magnitudes.shape[1] - count), high / count
    return large, torch.stack([low, torch.where(count > 0, torch.maximum(high, low), low)])  # sums are rounded, too


def _sums(rows: torch.Tensor) -> torch.Tensor:
    """The sums of [blocks, elements], the halves of a row added again and again: no machine adds in another order."""
    width = 1 << (rows.shape[1] - 1).bit_length()
    if width != rows.shape[1]:
        rows = torch.nn.functional.pad(rows, (0, width - rows.shape[1]))
    while width > 1:
        width //= 2
        rows = rows[:, :width] + rows[:, width:]
    return rows[:, 0]


def _blocks(numel: int) -> int:
    return -(-numel // BLOCK_ELEMENTS)
