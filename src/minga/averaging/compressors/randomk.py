"""`randomk`: some elements of each block, drawn by a seed that all peers share, so that indices need no bytes.

A block of 4096 is the seed (4 bytes) and the values of k elements as float16. Peers of one round encode one chunk by
one seed, so all of them send the same elements, and their mean is as sparse as each contribution. The seed is another
one for each chunk and step; what a round leaves out comes in a later one, by the residual.

||C(x) - x||**2 is (1 - k / 4096) ||x||**2 on average, so it leaves out more than `topk` does; but anybody can tell from
the bytes which elements a peer had to send.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import numpy as np
import torch

from minga.averaging.codecs.interface import InvalidEncodingError, largest_magnitude, require_magnitude
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
