"""Which slice of the vector each member aggregates, and the digests by which members commit to their parts.

Slices are equal, in the order of the ranks. Unlike in ordinary rounds nobody plans: members must not have to trust a
leader, nor each other's rates.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from blake3 import blake3

from minga.averaging.apportionment import apportion
from minga.averaging.codecs.interface import (
    CONTRIBUTION_LIMIT,
    FLOAT32_MAX,
    InvalidEncodingError,
    largest_magnitude,
    require_magnitude,
)
from minga.averaging.codecs.layout import Chunk, VectorLayout
from minga.averaging.codecs.tensor_bytes import as_bytes, bytes_of, load, store
from minga.core.buffer_pool import BufferPool, Bytes

# ---- The running digest of bytes that come one after the other.
#
# To hash a part takes longer than to read it, and longest where its bytes have to come from memory again. So they are
# hashed while they are in the cache: as they arrive, or as they are looked through.


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


# ---- The Merkle tree: one digest that stands for those of all parts of a gradient.
#
# The tree is a binary hash tree. A peer that knows the root can be shown any single leaf with one digest for each level
# of the tree, its *path*. So members commit to all parts of a gradient with 32 bytes, however many parts there are, and
# a peer that has a part and its path has the proof of what its owner committed to (Merkle 1987; BTARD section 4.1).
#
#     root = H(H(d0 d1) H(d2 -))      path of d2: -, H(d0 d1)
#
# The number of leaves is known to all beforehand and is rounded up to a power of two with `_NOTHING`, so all paths are
# equally long and a digest half-way up cannot pass for a leaf. Nodes are hashed in another way than parts.


_CONTEXT: Final = "minga 2026 node of the tree of part digests"
_NOTHING: Final = bytes(32)


def depth(count: int) -> int:
    """Digests of a path among `count` >= 1 leaves."""
    return (count - 1).bit_length()


class MerkleTree:
    """Over the `digests` (`digest_of`) of parts, of which there is at least one."""

    def __init__(self, digests: Sequence[bytes]) -> None:
        level = [*digests, *[_NOTHING] * ((1 << depth(len(digests))) - len(digests))]
        self._levels = [level]
        while len(level) > 1:
            level = [_node(level[at], level[at + 1]) for at in range(0, len(level), 2)]
            self._levels.append(level)

    @property
    def root(self) -> bytes:
        """32 bytes that stand for all parts and their order."""
        return self._levels[-1][0]

    def path(self, index: int) -> tuple[bytes, ...]:
        """What `root_of` needs beside the part at `index`, from the bottom to the top."""
        return tuple(level[(index >> height) ^ 1] for height, level in enumerate(self._levels[:-1]))


def root_of(digest: bytes, index: int, count: int, path: Sequence[bytes]) -> bytes | None:
    """The root of the tree in which the part with this digest is at `index` of `count` and has this path; None if there
    is none.
    """
    if not 0 <= index < count or len(path) != depth(count):
        return None
    for height, sibling in enumerate(path):
        digest = _node(sibling, digest) if index >> height & 1 else _node(digest, sibling)
    return digest


def _node(left: bytes, right: bytes) -> bytes:
    return bytes(blake3(left + right, derive_key_context=_CONTEXT).digest())


# ---- Which slice each member aggregates.


_WHOLE = 1 << 62
_READ_ELEMENTS = 1 << 17
"""Looked through and hashed at once, while they are in the cache of one core."""


@dataclass(frozen=True)
class EqualParts:
    """The slices of one attempt: `starts` and `stops` by rank. With fewer elements than members the last are empty."""

    layout: VectorLayout
    starts: tuple[int, ...]
    stops: tuple[int, ...]

    @classmethod
    def equal(cls, layout: VectorLayout, members: int) -> EqualParts:
        """Cut the vector for so many members, at least one."""
        sizes = apportion(layout.total, [1.0] * members)
        stops, stop = [], 0
        for size in sizes:
            stop += size
            stops.append(stop)
        return cls(layout, tuple(b - s for b, s in zip(stops, sizes, strict=True)), tuple(stops))

    def numel(self, part: int) -> int:
        """Elements of a part."""
        return self.stops[part] - self.starts[part]

    @property
    def parts(self) -> tuple[int, ...]:
        """Those that have elements."""
        return tuple(part for part in range(len(self.starts)) if self.numel(part))

    def chunks(self, part: int) -> tuple[Chunk, ...]:
        """The pieces of a part that have one codec each."""
        return self.layout.chunks(self.starts[part], self.stops[part], _WHOLE)

    def is_plain(self, part: int) -> bool:
        """Whether the bytes of a part are its numbers themselves, as they lie in memory."""
        chunks = self.chunks(part)
        return sys.byteorder == "little" and len(chunks) == 1 and chunks[0].codecs.upload.is_identity

    @property
    def part_bytes(self) -> tuple[int, ...]:
        """Bytes of each part on the wire."""
        return tuple(map(self.layout.upload_bytes, self.starts, self.stops))

    @property
    def value_bytes(self) -> tuple[int, ...]:
        """Bytes of each aggregate, which is float32, because the checks compare it with what it was made from."""
        return tuple(4 * self.numel(part) for part in range(len(self.starts)))

    def encode(self, vector: torch.Tensor, part: int, pool: BufferPool | None = None) -> memoryview:
        """A part of a float32 vector as it goes over the wire, in one of `pool` if there are any.

        Raises `NonFiniteError`.
        """
        size = self.layout.upload_bytes(self.starts[part], self.stops[part])
        body = pool.take(size) if pool else memoryview(bytearray(size))
        at = 0
        for chunk in self.chunks(part):
            chunk.codecs.upload.encode(vector[chunk.start : chunk.stop], body[at : at + chunk.upload_bytes])
            at += chunk.upload_bytes
        return body

    def decode(self, data: Bytes, part: int, target: torch.Tensor) -> None:
        """Undo `encode` into a float32 vector as long as the part. Raises `InvalidEncodingError`."""
        at, start = 0, self.starts[part]
        for chunk in self.chunks(part):
            piece = target[chunk.start - start : chunk.stop - start]
            chunk.codecs.upload.decode(memoryview(data)[at : at + chunk.upload_bytes], piece)
            at += chunk.upload_bytes

    def row(self, data: Bytes, part: int, *, is_sound: bool = False) -> torch.Tensor:
        """Undo `encode`, in place where the bytes are float32 already; with `is_sound` they were looked through before.

        Raises `InvalidEncodingError`.
        """
        if self.is_plain(part) and len(data) == 4 * self.numel(part):
            return _loaded(data) if is_sound else _in_place(data, FLOAT32_MAX)
        values = torch.empty(self.numel(part))
        self.decode(data, part, values)
        return values


def encoded(
    division: EqualParts, gradient: torch.Tensor, pool: BufferPool | None = None
) -> tuple[list[memoryview], MerkleTree]:
    """The bytes of each part of a gradient (flat float32), and the tree over them. Bytes that are the numbers
    themselves are not copied: they lie where the gradient does, which nobody changes any more.

    Raises `NonFiniteError`, and `ValueError` for another kind of tensor, or one of another length.
    """
    if gradient.dtype != torch.float32 or gradient.shape != (division.layout.total,) or gradient.device.type != "cpu":
        raise ValueError(
            f"a gradient is float32 [{division.layout.total}] in CPU memory, "
            f"not {gradient.dtype} {tuple(gradient.shape)} on {gradient.device}"
        )
    parts, digests = [], []
    for part in range(len(division.starts)):
        if division.is_plain(part):
            values = gradient.detach()[division.starts[part] : division.stops[part]].contiguous()
            parts.append(as_bytes(values))
            digests.append(_looked_through(values))
        else:
            parts.append(division.encode(gradient, part, pool))
            digests.append(digest_of(parts[-1]))
    return parts, MerkleTree(digests)


def _looked_through(values: torch.Tensor) -> bytes:
    """The digest of float32 values, which are read but once. Raises `NonFiniteError` if one is no number."""
    running = RunningDigest(as_bytes(values))
    for piece in torch.split(values, _READ_ELEMENTS):
        require_magnitude(largest_magnitude(piece), FLOAT32_MAX)
        running.filled(piece.nbytes)
    return running.digest()


def value_to_bytes(value: torch.Tensor, place: memoryview) -> None:
    """Write an aggregate (float32) as it goes over the wire."""
    store(value, bytes_of(place, writable=True), torch.float32)


def value_from_bytes(data: Bytes) -> torch.Tensor:
    """Undo `value_to_bytes`; what could be written to is not copied.

    Raises `InvalidEncodingError` for numbers that no mean of parts can have.
    """
    return _in_place(data, CONTRIBUTION_LIMIT)


def _loaded(data: Bytes) -> torch.Tensor:
    return load(bytes_of(data, writable=False), torch.float32)


def _in_place(data: Bytes, limit: float) -> torch.Tensor:
    values = _loaded(data)
    if len(values) and not largest_magnitude(values) <= limit:
        raise InvalidEncodingError(f"a value is no number within +-{limit:g}")
    return values
