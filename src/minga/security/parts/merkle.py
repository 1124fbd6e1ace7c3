"""One digest that stands for many: a binary hash tree over the digests of a gradient's parts.

A peer that knows the root can be shown any single leaf with one digest for each level of the tree, its *path*. So
members commit to all parts of a gradient with 32 bytes, however many parts there are, and a peer that has a part and
its path has the proof of what its owner committed to (Merkle 1987; BTARD section 4.1).

    root = H(H(d0 d1) H(d2 -))      path of d2: -, H(d0 d1)

The number of leaves is known to all beforehand and is rounded up to a power of two with `_NOTHING`, so all paths are
equally long and a digest half-way up cannot pass for a leaf. Nodes are hashed in another way than parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from blake3 import blake3

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
