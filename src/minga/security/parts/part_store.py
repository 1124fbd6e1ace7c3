"""The bytes of one attempt that a member has: parts as they were sent, and aggregates, each as it was committed to.

Parts count by their path to the root that their owner committed to, aggregates by the digest that was stated. So it
does not matter who brings them, and nothing else is ever kept.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

from minga.core.aio import Signal
from minga.core.buffer_pool import BufferPool, Bytes
from minga.core.errors import ProtocolError, RejectedError
from minga.core.refusal_code import RefusalCode
from minga.network.interface import PeerId
from minga.security.parts.equal_parts import MerkleTree, digest_of, root_of
from minga.security.parts.transfer_limits import TransferProgress


class PartStore:
    """All bytes of one attempt that this member has: its own parts, what was brought to it, and the aggregates.

    `part_bytes` and `value_bytes` are those of each part on the wire and of each aggregate, by the aggregator's place.
    What is put in was compared with the digest that was stated for it; before that is known it waits. It lies in pieces
    of `pool`.
    """

    def __init__(self, part_bytes: Sequence[int], value_bytes: Sequence[int], pool: BufferPool | None = None) -> None:
        self.pool = pool or BufferPool()
        self.part_bytes, self.value_bytes = tuple(part_bytes), tuple(value_bytes)
        self.changed = Signal()
        self.arrivals = TransferProgress()
        """What is coming without being asked for: parts, as (owner's rank, part), and aggregates, by part."""
        self.parts: dict[tuple[int, int], Bytes] = {}
        """(owner's rank, part) -> bytes as they were sent."""
        self.paths: dict[tuple[int, int], tuple[bytes, ...]] = {}
        """Of the same parts: what shows that their owner committed to them."""
        self.values: dict[int, Bytes] = {}
        self.roots: dict[int, bytes] = {}
        """What owners committed to, by rank; nothing else is taken."""
        self.value_digests: dict[int, bytes] = {}
        self._visits: dict[PeerId, asyncio.Task[Any] | None] = {}
        self._fetches: set[asyncio.Task[Any]] = set()
        self._is_closed = False
        self.committed, self.stated = asyncio.Event(), asyncio.Event()
        """Set when the roots of all owners, and the digests of all aggregates, are known."""

    def put_part(self, owner: int, part: int, data: Bytes, path: Sequence[bytes], digest: bytes | None = None) -> bool:
        """Keep a part, whose digest may be known already; False if it is not what its owner committed to."""
        root = root_of(digest or digest_of(data), part, len(self.part_bytes), path)
        if root is None or self.roots.get(owner) != root:
            return False
        self.parts[owner, part], self.paths[owner, part] = data, tuple(path)
        self.changed.fire()
        return True

    def put_owners(self, owner: int, parts: Mapping[int, Bytes], tree: MerkleTree) -> None:
        """Keep parts of an owner, who commits to the `tree` that was made of these and the rest."""
        self.roots[owner] = tree.root
        for part, data in parts.items():
            self.parts[owner, part], self.paths[owner, part] = data, tree.path(part)
        self.changed.fire()

    def put_value(self, part: int, data: Bytes, digest: bytes | None = None) -> bool:
        """Keep an aggregate, whose digest may be known already; False if it is not the one that was stated."""
        if self.value_digests.get(part) != (digest or digest_of(data)):
            return False
        self.values[part] = data
        self.changed.fire()
        return True

    @contextlib.contextmanager
    def visit(self, peer: PeerId) -> Iterator[None]:
        """Within it the running task serves a member that brings its part, and is cancelled when the attempt is over.

        Raises `ProtocolError` at the second time, since each needs memory for a part, and `RejectedError` if the
        attempt is over.
        """
        if self._is_closed:
            raise RejectedError("that attempt is over here", code=RefusalCode.ATTEMPT)
        if peer in self._visits:
            raise ProtocolError("it brings a part twice", peer=peer)
        self._visits[peer] = asyncio.current_task()
        try:
            yield
        finally:
            self._visits[peer] = None

    def end_with(self, fetch: asyncio.Task[Any]) -> None:
        """A task that fetches something of the attempt is cancelled when that is over: no line carries what nobody
        needs beside what the next attempt waits for.
        """
        self._fetches.add(fetch)
        fetch.add_done_callback(self._fetches.discard)

    def close(self) -> None:
        """The attempt is over: nobody is waited for any more who may never send, or never read."""
        self._is_closed = True
        for task in (*self._visits.values(), *self._fetches):
            if task is not None:
                task.cancel()

    @cached_property
    def _whole(self) -> memoryview:
        return self.pool.take(sum(self.value_bytes))

    @cached_property
    def places(self) -> tuple[memoryview, ...]:
        """Where the aggregate of each part belongs; only who aggregates it, or carries it home from there, writes."""
        stops = accumulate(self.value_bytes)
        return tuple(self._whole[stop - size : stop] for size, stop in zip(self.value_bytes, stops, strict=True))

    @property
    def vector(self) -> Bytes:
        """All aggregates, of which none may be missing, one after the other; a copy unless all came on their way."""
        parts = [part for part, size in enumerate(self.value_bytes) if size]
        if all(self.values.get(part) is self.places[part] for part in parts):
            return self._whole
        return bytearray().join(self.values[part] for part in parts)
