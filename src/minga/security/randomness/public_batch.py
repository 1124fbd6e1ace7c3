"""Public data: which samples a peer trains on in a step follows from the shared random string alone.

So anybody can compute anybody's gradient again (BTARD section 12.3). With r the random string of the step before, a
peer's seed is ξ = H(r, peer), that of its a-th micro-batch H(ξ, a), and the samples are the numbers that the stream of
that seed gives. Cropping, masking and dropout must take their chance from the same seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from minga.network.interface import PeerId
from minga.security.randomness.coin import UniformIntegers, derive


def data_seed(randomness: bytes, peer: PeerId) -> bytes:
    """Return the 32 bytes from which all chance in `peer`'s next step comes; `randomness` is the last step's."""
    return derive(randomness, "data", peer)


def micro_batch_seed(seed: bytes, index: int) -> bytes:
    """Return the 32 bytes for the micro-batch `index`, counted from 0, of a peer whose `data_seed` is `seed`."""
    return derive(seed, "micro-batch", index)


def batch_indices(seed: bytes, count: int, dataset_size: int) -> npt.NDArray[np.int64]:
    """Return the numbers of the `count` samples of a micro-batch, int64 [count], each from 0 to below `dataset_size`.

    Drawn with repetition, each sample equally likely, the same on every machine. Raises `ValueError` for a negative
    count or a size outside 1 to 2**62.
    """
    return UniformIntegers(derive(seed, "samples")).below(dataset_size, count)


@dataclass(frozen=True)
class PublicBatch:
    """A micro-batch of `size` samples that anybody can make again from its `seed` (32 bytes)."""

    seed: bytes
    size: int

    @classmethod
    def of(cls, seed: bytes, index: int, size: int) -> PublicBatch:
        """The micro-batch `index` of the peer whose `data_seed` is `seed`."""
        return cls(micro_batch_seed(seed, index), size)

    def indices(self, dataset_size: int) -> npt.NDArray[np.int64]:
        """The numbers of its samples, int64 [size]; see `batch_indices`."""
        return batch_indices(self.seed, self.size, dataset_size)

    @property
    def number(self) -> int:
        """64 bits for random generators: all chance in the micro-batch (masks, crops) has to come from them. The one
        of torch is set to them already.
        """
        return int.from_bytes(derive(self.seed, "chance")[:8], "little")
