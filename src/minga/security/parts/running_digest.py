"""The digest of bytes that come one after the other.

To hash a part takes longer than to read it, and longest where its bytes have to come from memory again. So they are
hashed piece by piece while they are in the cache: as they arrive, or as they are looked through.
"""

from __future__ import annotations

from blake3 import blake3

from minga.core.buffer_pool import Bytes


def digest_of(data: Bytes) -> bytes:
    """32 bytes that stand for others; of a whole part they take long enough to be found in a thread."""
    return blake3(data).digest()


class RunningDigest:
    """What `digest_of` gives for all pieces that were added, one after the other."""

    def __init__(self) -> None:
        self._hash = blake3()

    def add(self, piece: Bytes) -> None:
        """The next bytes."""
        self._hash.update(piece)

    def digest(self) -> bytes:
        """32 bytes that stand for all that was added so far."""
        return self._hash.digest()
