"""k elements of each block: the largest (`topk` for uploads, `gtopk` for their mean), or drawn ones (`randomk`).

Of a block of 4096, `topk` and `gtopk` write the indices of the k elements of the largest magnitude (of equal ones those
of lower index), then their values. All blocks take the same number of bytes, so that a slice takes as many as its
length says:

    k      with float16 values        with 2-bit values
    32     100 bytes a block, 82x     48 bytes, 171x        below float16, which takes 8192 bytes
    64     192 bytes, 43x             84 bytes, 98x

`topk` leaves out by far the most, and a residual makes up for that. Where values are in the range of float16,
||C(x) - x||**2 is at most (1 - k / 4096) ||x||**2; what is below it (6e-8) waits in the residual until it is above.

`gtopk` is for means of such vectors, which have fewer zeros than each of them. Of the sums of all peers it sends the
largest, by default 256 of 4096, and the others are *returned*: where the mean is exactly 0, each peer takes back what
it sent there. No mass is lost by that, and the peer that reduces keeps nothing for others. A tree of merges as in the
paper would drop values on its way.

Source: "Sparsified SGD with Memory" (Stich et al. 2018); "A Distributed Synchronous SGD Algorithm with Global Top-k
Sparsification" (Shi et al. 2019), whose tree the all-reduce of minga replaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, Literal

import numpy as np
import torch

from minga.averaging.codecs.interface import InvalidEncodingError, largest_magnitude, require_magnitude
from minga.averaging.compressors.sparse_codec import (
    BLOCK_ELEMENTS,
    KEPT_VALUES,
    Bytes,
    Float16Values,
    KeptValues,
    Numbers,
    SparseCodec,
    UnionCodec,
    UploadSettings,
    Values,
    blocks_of,
    elements_of_block,
    increasing,
    largest_of,
    magnitudes_of,
    share_of_block,
)
from minga.core.spec.fields import Section, choice


class TopKSettings(UploadSettings):
    """How much is sent of a contribution, and how exactly."""

    values: Literal["float16", "2bit"] = choice("float16", "how their values are sent", "float16", "2bit")


class GlobalTopKSettings(Section):
    """How much is sent of a mean."""

    k: int = elements_of_block(256, "elements that are sent of each block of 4096")


class _LargestOfBlocks(SparseCodec):
    """The `k` largest elements of each block of 4096."""

    def __init__(self, settings: Section, k: int, values: KeptValues) -> None:
        self.settings, self.k, self._values = settings, k, values

    def max_error(self, source: torch.Tensor) -> torch.Tensor:
        """An element that is not sent is off by all of it."""
        blocks = [self._values.max_error(block) for block in torch.split(source, BLOCK_ELEMENTS) if block.numel()]
        return torch.cat(blocks) if blocks else source.double()

    def _block_bytes(self, elements: int) -> int:
        count = share_of_block(self.k, elements)
        return increasing(count, elements).encoded_bytes + self._values.encoded_bytes(count)

    def _encode(self, source: torch.Tensor, raw: torch.Tensor, limit: float, seed: int) -> int:  # noqa: ARG002
        require_magnitude(largest_magnitude(source), limit)
        written, values, at = raw.numpy(), source.numpy(), 0
        for first, blocks, elements in blocks_of(source.numel()):
            count = share_of_block(self.k, elements)
            part = slice(first, first + blocks * elements)
            chosen = largest_of(magnitudes_of(source[part]).reshape(blocks, elements), count)
            indices = (np.flatnonzero(chosen) % elements).reshape(blocks, count)
            kept = values[part].reshape(blocks, elements)[chosen].reshape(blocks, count)
            numbers, size = increasing(count, elements), self._block_bytes(elements)
            rows = written[at : at + blocks * size].reshape(blocks, size)
            rows[:, : numbers.encoded_bytes] = numbers.encode(indices)
            rows[:, numbers.encoded_bytes :] = self._values.encode(kept)
            at += blocks * size
        return at

    def _sent(self, raw: Bytes, numel: int, limit: float) -> Iterator[tuple[Numbers, Values]]:
        at = 0
        for first, blocks, elements in blocks_of(numel):
            count, size = share_of_block(self.k, elements), self._block_bytes(elements)
            numbers = increasing(count, elements)
            rows = raw[at : at + blocks * size].reshape(blocks, size)
            indices = numbers.decode(rows[:, : numbers.encoded_bytes])
            indices += first + elements * np.arange(blocks)[:, None]
            yield indices, self._values.decode(rows[:, numbers.encoded_bytes :], count, limit)
            at += blocks * size


class TopKCodec(_LargestOfBlocks):
    """The `k` largest elements of each block of 4096; their values as "float16" or "2bit"."""

    name = "topk"
    usual_download = "gtopk"
    Settings = TopKSettings

    def __init__(self, settings: TopKSettings) -> None:
        super().__init__(settings, settings.k, KEPT_VALUES[settings.values])
        self._has_levels = settings.values == "2bit"

    def delta(self, numel: int) -> float | None:
        """With two levels, that of the largest element alone, which never has a level of less use; as float16 there is
        none, since small values become 0.
        """
        return min(numel, BLOCK_ELEMENTS) * (1 + 2.0**-15) if self._has_levels else None


class GlobalTopKCodec(_LargestOfBlocks):
    """The `k` largest elements of each block of a mean, as float16; senders take the others back."""

    name = "gtopk"
    Settings = GlobalTopKSettings
    needs_residual = False
    returns = True

    def __init__(self, settings: GlobalTopKSettings) -> None:
        super().__init__(settings, settings.k, KEPT_VALUES["float16"])
        self._of_sites = UnionCodec()

    @property
    def of_sites(self) -> UnionCodec:
        """All of it: a relay that dropped values would drop them for good, for the root would not return them."""
        return self._of_sites


# ---- `randomk`: some elements of each block, drawn by a seed that all peers share, so that indices need no bytes.
#
# A block of 4096 is the seed (4 bytes) and the values of k elements as float16. Peers of one round encode one chunk by
# one seed, so all of them send the same elements, and their mean is as sparse as each contribution. The seed is
# another one for each chunk and step; what a round leaves out comes in a later one, by the residual.
#
# ||C(x) - x||**2 is (1 - k / 4096) ||x||**2 on average, so it leaves out more than `topk` does; but anybody can tell
# from the bytes which elements a peer had to send.


SEED_BYTES: Final = 4
_VALUES: Final = Float16Values()


class RandomKCodec(SparseCodec):
    """`k` elements of each block of 4096, the same of all peers."""

    name = "randomk"
    usual_download = "union"
    Settings = UploadSettings
    draws = True

    def __init__(self, settings: UploadSettings) -> None:
        self.settings, self.k = settings, settings.k

    def _block_bytes(self, elements: int) -> int:
        return SEED_BYTES + _VALUES.encoded_bytes(share_of_block(self.k, elements))

    def _encode(self, source: torch.Tensor, raw: torch.Tensor, limit: float, seed: int) -> int:
        require_magnitude(largest_magnitude(source), limit)
        written, values, at = raw.numpy(), source.numpy(), 0
        short = seed % (1 << 8 * SEED_BYTES)
        head = np.frombuffer(short.to_bytes(SEED_BYTES, "little"), np.uint8)
        for first, blocks, elements in blocks_of(source.numel()):
            chosen, size = drawn(short, share_of_block(self.k, elements), elements), self._block_bytes(elements)
            rows = written[at : at + blocks * size].reshape(blocks, size)
            rows[:, :SEED_BYTES] = head
            part = values[first : first + blocks * elements].reshape(blocks, elements)
            rows[:, SEED_BYTES:] = _VALUES.encode(part[:, chosen])
            at += blocks * size
        return at

    def _sent(self, raw: Bytes, numel: int, limit: float) -> Iterator[tuple[Numbers, Values]]:
        at, seed = 0, int.from_bytes(raw[:SEED_BYTES].tobytes(), "little")
        for first, blocks, elements in blocks_of(numel):
            count, size = share_of_block(self.k, elements), self._block_bytes(elements)
            rows = raw[at : at + blocks * size].reshape(blocks, size)
            if (rows[:, :SEED_BYTES] != raw[:SEED_BYTES]).any():  # each would cost a draw of all elements
                raise InvalidEncodingError("the blocks of a slice have different seeds")
            indices = drawn(seed, count, elements) + first + elements * np.arange(blocks)[:, None]
            yield indices, _VALUES.decode(rows[:, SEED_BYTES:], count, limit)
            at += blocks * size


@lru_cache(maxsize=64)
def drawn(seed: int, count: int, elements: int) -> Numbers:
    """`count` of the numbers from 0 to below `elements`, increasing: all choices alike, and one for each seed."""
    order = np.argsort(np.random.Philox(key=seed).random_raw(elements), kind="stable")
    numbers = np.sort(order[:count])
    numbers.flags.writeable = False  # the same for all who ask
    return numbers
