"""Codecs that send as many elements of a block as there are: `union` for means, `gaussiank` for uploads.

A block of 4096 is how many elements it has values for, in two bytes, their indices and their values as float16; or all
values, where that takes no more bytes. So a slice takes as many bytes as it needs, and never more than as float16 but
for the counts.

`union` sends all elements of a mean that are not 0: those that any peer sent. With a share r of the elements from each
of N peers, elsewhere each, that is 1 - (1 - r)**N of all.

`gaussiank` sends the elements beyond a threshold, which is quicker to find than the largest k where nothing sorts fast.
It begins with the one that normal values would have and corrects it at most three times:

    |mean| + sigma |quantile(k / 8192)|;    times 1/2 below 2/3 k elements, times 3/2 above 4/3 k of them

How many there are is not certain, so at most 4/3 k of a block are sent, those of lower index; and the largest where
none is beyond.

Source: "Understanding Top-k Sparsification in Distributed Deep Learning" (Shi et al. 2019).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from minga.averaging.codecs.interface import InvalidEncodingError, largest_magnitude, require_magnitude
from minga.averaging.compressors.elias_fano import increasing
from minga.averaging.compressors.kept_values import Float16Values
from minga.averaging.compressors.sparse_codec import (
    Bytes,
    Numbers,
    SparseCodec,
    UploadSettings,
    Values,
    blocks_of,
    share_of_block,
)

_COUNT_BYTES: Final = 2
_VALUES: Final = Float16Values()
_CORRECTIONS: Final = 3


class CountedBlocksCodec(SparseCodec):
    """As many elements of each block as a subclass chooses."""

    has_fixed_size = False

    @abstractmethod
    def _most(self, elements: int) -> int:
        """How many of a block of so many elements are sent at most."""

    @abstractmethod
    def _chosen(self, rows: Values) -> npt.NDArray[np.bool_]:
        """Which elements of blocks [blocks, elements] are sent."""

    def _block_bytes(self, elements: int) -> int:
        return _COUNT_BYTES + _body_bytes(self._most(elements), elements)

    def _encode(self, source: torch.Tensor, raw: torch.Tensor, limit: float, seed: int) -> int:  # noqa: ARG002
        require_magnitude(largest_magnitude(source), limit)
        written, values, at = raw.numpy(), source.numpy(), 0
        for first, blocks, elements in blocks_of(source.numel()):
            rows = values[first : first + blocks * elements].reshape(blocks, elements)
            for row, chosen in zip(rows, self._chosen(rows), strict=True):
                body = _block(row, chosen)
                written[at : at + len(body)] = body
                at += len(body)
        return at

    def _sent(self, raw: Bytes, numel: int, limit: float) -> Iterator[tuple[Numbers, Values]]:
        at = 0
        for first, blocks, elements in blocks_of(numel):
            for begin in range(first, first + blocks * elements, elements):
                if len(raw) < at + _COUNT_BYTES:
                    raise InvalidEncodingError("a block is missing")
                count = int(raw[at]) | int(raw[at + 1]) << 8
                if count > self._most(elements):
                    raise InvalidEncodingError(f"a block has {count} elements; {self._most(elements)} are accepted")
                at, size = at + _COUNT_BYTES, _body_bytes(count, elements)
                if len(raw) < at + size:
                    raise InvalidEncodingError("the bytes end within a block")
                yield _read(raw[at : at + size], count, elements, begin, limit)
                at += size
        if at != len(raw):
            raise InvalidEncodingError(f"{len(raw) - at} bytes follow the last block")


class UnionCodec(CountedBlocksCodec):
    """All elements that are not 0."""

    name = "union"
    needs_residual = False

    def max_error(self, source: torch.Tensor) -> torch.Tensor:
        """That of float16: half a unit in the last place, and what the clamp cuts off."""
        magnitude = source.abs().double()
        return torch.maximum((magnitude * 2.0**-11).clamp(min=2.0**-25), magnitude - 65504.0)

    def _most(self, elements: int) -> int:
        return elements

    def _chosen(self, rows: Values) -> npt.NDArray[np.bool_]:
        return np.abs(rows) > np.float32(2.0**-25)  # what is nearer to 0 is 0 as float16


class GaussianKCodec(CountedBlocksCodec):
    """The elements of a block of 4096 beyond a threshold that about `k` of normal values are beyond."""

    name = "gaussiank"
    usual_download = "gtopk"
    Settings = UploadSettings

    def __init__(self, settings: UploadSettings) -> None:
        self.settings, self.k = settings, settings.k

    def _most(self, elements: int) -> int:
        return min(elements, 4 * share_of_block(self.k, elements) // 3)

    def _chosen(self, rows: Values) -> npt.NDArray[np.bool_]:
        count = share_of_block(self.k, rows.shape[1])
        threshold = _thresholds(rows, count)
        magnitudes = np.abs(rows)
        for _ in range(_CORRECTIONS):
            found = np.count_nonzero(magnitudes > threshold, axis=1)[:, None]
            factor = np.where(3 * found < 2 * count, 0.5, np.where(3 * found > 4 * count, 1.5, 1.0))
            if (factor == 1.0).all():
                break
            threshold *= factor
        chosen = magnitudes > threshold
        none = ~chosen.any(axis=1)  # as if all were alike: no block may send nothing for ever
        chosen[none] = (magnitudes[none] == magnitudes[none].max(axis=1, keepdims=True)) & (magnitudes[none] > 0)
        for row in np.flatnonzero(np.count_nonzero(chosen, axis=1) > self._most(rows.shape[1])):
            chosen[row, np.flatnonzero(chosen[row])[self._most(rows.shape[1]) :]] = False
        return chosen


def _thresholds(rows: Values, count: int) -> npt.NDArray[np.float64]:
    """Beyond what `count` elements of each row would be if they were normal values: the same on all machines."""
    numel = rows.shape[1]
    wide = rows.astype(np.float64)
    mean = np.cumsum(wide, axis=1)[:, -1:] / numel  # in their order, which a sum need not keep
    variance = np.cumsum((wide - mean) ** 2, axis=1)[:, -1:] / numel
    beyond = -NormalDist().inv_cdf(count / (2 * numel)) if count < numel else 0.0
    return np.asarray(np.abs(mean) + beyond * np.sqrt(variance))


def _body_bytes(count: int, elements: int) -> int:
    """What a block with values for `count` of its elements takes after the count."""
    if count == 0:
        return 0
    return min(increasing(count, elements).encoded_bytes + 2 * count, 2 * elements)


def _block(row: Values, chosen: npt.NDArray[np.bool_]) -> Bytes:
    indices = np.flatnonzero(chosen)
    count, elements = len(indices), len(row)
    head = np.array([count], "<u2").view(np.uint8)
    if count == 0:
        return head
    if _body_bytes(count, elements) == 2 * elements:
        return np.concatenate([head, _VALUES.encode(np.where(chosen, row, np.float32(0)))])
    return np.concatenate([head, increasing(count, elements).encode(indices[None])[0], _VALUES.encode(row[indices])])


def _read(body: Bytes, count: int, elements: int, begin: int, limit: float) -> tuple[Numbers, Values]:
    """The elements of one block that begins with element `begin`, and their values."""
    if count == 0:
        return np.empty(0, np.int64), np.empty(0, np.float32)
    if len(body) == 2 * elements:
        return np.arange(begin, begin + elements), _VALUES.decode(body, elements, limit)[0]
    numbers = increasing(count, elements)
    indices = numbers.decode(body[None, : numbers.encoded_bytes])[0] + begin
    return indices, _VALUES.decode(body[numbers.encoded_bytes :], count, limit)[0]
