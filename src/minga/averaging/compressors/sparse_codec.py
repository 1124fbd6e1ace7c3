"""What codecs share that send some elements of each block of 4096, and nothing of the others.

How many of a block are sent is given for a whole block; a shorter one at the end of a slice gives as large a share, and
at least one element. Tensors of less than a block travel as float16: the share would be of too few.

Bytes are read a few blocks at a time, so that what lies between them and the vector stays small and in the cache.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from minga.averaging.codecs.interface import Codec
from minga.averaging.codecs.tensor_bytes import CACHED_ELEMENTS
from minga.core.spec.choices import spelled
from minga.core.spec.fields import Section, whole

BLOCK_ELEMENTS: Final = 4096
ROWS: Final = CACHED_ELEMENTS // BLOCK_ELEMENTS
"""Blocks that are worked on at once."""

Numbers = npt.NDArray[np.int64]
Values = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


WARM_UP_ELEMENTS: Final = BLOCK_ELEMENTS // 16
"""How many elements of a block are sent when a warm-up begins."""


def elements_of_block(default: int, meaning: str) -> Any:
    """A setting that says how many elements of a block of 4096 are sent."""
    return whole(default, 1, BLOCK_ELEMENTS, meaning)


class UploadSettings(Section):
    """How much is sent of a contribution."""

    k: int = elements_of_block(64, "elements that are sent of each block of 4096")


class SparseCodec(Codec):
    """Some elements of each block of 4096."""

    block_elements = BLOCK_ELEMENTS
    fewest_elements = BLOCK_ELEMENTS
    is_sparse = True
    needs_residual = True

    def max_encoded_bytes(self, numel: int) -> int:
        """What whole blocks take at most, and a short last one."""
        whole, rest = divmod(numel, BLOCK_ELEMENTS)
        return whole * self._block_bytes(BLOCK_ELEMENTS) + (self._block_bytes(rest) if rest else 0)

    @abstractmethod
    def _block_bytes(self, elements: int) -> int:
        """Bytes that a block of so many elements takes at most."""

    @abstractmethod
    def _sent(self, raw: Bytes, numel: int, limit: float) -> Iterator[tuple[Numbers, Values]]:
        """The elements that a slice of `numel` elements has values for, in parts, each element once.

        Raises `InvalidEncodingError` for bytes that no encoder makes of values up to `limit`.
        """

    def max_error(self, source: torch.Tensor) -> torch.Tensor:
        """An element that is not sent is off by all of it."""
        return source.abs().double()

    def warming_up(self, share: float) -> str:
        """The same with a larger k, 256 at first, which is halved after equal numbers of rounds."""
        settings = self.settings
        if not (self.needs_residual and isinstance(settings, UploadSettings)):
            return super().warming_up(share)
        halvings = (-(-WARM_UP_ELEMENTS // settings.k) - 1).bit_length()
        k = max(settings.k, WARM_UP_ELEMENTS >> int(share * halvings))
        return spelled(self.name, settings.model_copy(update={"k": k}))

    def _check(self, raw: torch.Tensor, numel: int, limit: float) -> None:
        for _ in self._sent(raw.numpy(), numel, limit):
            pass

    def _decode(self, raw: torch.Tensor, target: torch.Tensor) -> None:
        target.zero_()
        values_of = target.numpy()
        for elements, values in self._sent(raw.numpy(), target.numel(), np.inf):
            values_of[elements] = values

    def _decode_add(self, raw: torch.Tensor, accumulator: torch.Tensor, weight: float) -> None:
        values_of, factor = accumulator.numpy(), np.float32(weight)
        for elements, values in self._sent(raw.numpy(), accumulator.numel(), np.inf):
            values_of[elements] += values * factor


def share_of_block(whole: int, numel: int) -> int:
    """How many elements a block of `numel` has of what a whole block has `whole` of; at least one."""
    return whole if numel == BLOCK_ELEMENTS else max(1, round(whole * numel / BLOCK_ELEMENTS))


def blocks_of(numel: int) -> Iterator[tuple[int, int, int]]:
    """The first element, the number of blocks and their length: of parts of whole blocks, then of a short last one."""
    whole, rest = divmod(numel, BLOCK_ELEMENTS)
    for first in range(0, whole, ROWS):
        yield first * BLOCK_ELEMENTS, min(ROWS, whole - first), BLOCK_ELEMENTS
    if rest:
        yield whole * BLOCK_ELEMENTS, 1, rest


def largest_of(rows: npt.NDArray[np.int32], count: int) -> npt.NDArray[np.bool_]:
    """Which `count` elements of each row [rows, elements] are the largest; of equal ones those of lower index."""
    if count == rows.shape[1]:
        return np.ones(rows.shape, np.bool_)
    least = np.partition(rows, -count, axis=1)[:, -count, None]
    chosen = rows >= least
    for row in np.flatnonzero(np.count_nonzero(chosen, axis=1) > count):  # more than one is as large as the least
        larger = rows[row] > least[row]
        equal = np.flatnonzero(rows[row] == least[row])[: count - np.count_nonzero(larger)]
        chosen[row] = larger
        chosen[row, equal] = True
    return chosen


def magnitudes_of(source: torch.Tensor) -> npt.NDArray[np.int32]:
    """Whole numbers in the order of the magnitudes of finite float32 elements: their bits without the sign."""
    return source.numpy().view(np.int32) & np.int32(0x7FFF_FFFF)
