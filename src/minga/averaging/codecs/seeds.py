"""The seeds with which the chunks of a round are encoded: public functions of what all peers know.

A codec may draw: to which neighbour it rounds, or which elements it sends. What it draws depends on its seed alone,
so that a repair of the round sends the same bytes again and anybody can make them again. The seed is equal on all peers
where a codec sends the same elements of all of them; where each rounds by itself, the peer's id is mixed in
(`Codec.differs_by_peer`), so that the errors of the peers are independent and cancel out in the mean.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from blake3 import blake3

from minga.averaging.codecs.layout import Chunk


@dataclass(frozen=True, slots=True)
class RoundSeeds:
    """The seeds of one member, `peer`, in the round of `step` over a layout with this `fingerprint`; no attempt at the
    round has others.
    """

    fingerprint: str = ""
    step: int = 0
    peer: str = ""

    def upload(self, chunk: Chunk) -> int:
        """For a chunk on its way to its aggregator, a number of 64 bits."""
        return self._seed("upload", chunk, self.peer if chunk.codecs.upload.differs_by_peer else "")

    def download(self, chunk: Chunk) -> int:
        """For the mean of a chunk, a number of 64 bits. The upload has another one, or rounding up would add up."""
        return self._seed("download", chunk, "")

    def _seed(self, way: str, chunk: Chunk, peer: str) -> int:
        return _seed_of(f"minga codec seed 1\n{way}\n{self.fingerprint}\n{self.step}\n{chunk.start}\n{peer}\n")


@functools.lru_cache(maxsize=4096)
def _seed_of(text: str) -> int:
    """A number of 64 bits; remembered because a simulation has many members of the same round."""
    return int.from_bytes(blake3(text.encode("ascii")).digest(length=8), "little")
