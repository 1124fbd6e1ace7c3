"""The digest of bytes that come one after the other.

To hash a part takes longer than to read it, and longest where its bytes have to come from memory again. So they are
hashed while they are in the cache: as they arrive, or as they are looked through.
"""

from __future__ import annotations

from typing import Final

from blake3 import blake3

from minga.core.buffer_pool import Bytes

AT_ONCE_BYTES: Final = 1 << 16
"""At whose multiples bytes are hashed: the hash takes whole subtrees of its tree at once, and so many together."""


def digest_of(data: Bytes) -> bytes:
    """32 bytes that stand for others; of a whole part they take long enough to be found in a thread."""
    return blake3(data).digest()


class RunningDigest:
    """What `digest_of` gives for `data`, whose bytes get there one after the other."""

    def __init__(self, data: Bytes) -> None:
        self._hash, self._data = blake3(), memoryview(data)
        self._hashed_bytes = self._there_bytes = 0

    def filled(self, size: int) -> None:
        """The next `size` bytes are there."""
        self._there_bytes += size
        self._add(self._there_bytes // AT_ONCE_BYTES * AT_ONCE_BYTES)

    def digest(self) -> bytes:
        """32 bytes that stand for all of it, now that it is there."""
        self._add(len(self._data))
        return self._hash.digest()

    def _add(self, until: int) -> None:
        if until > self._hashed_bytes:
            self._hash.update(self._data[self._hashed_bytes : until])
            self._hashed_bytes = until
