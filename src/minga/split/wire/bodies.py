"""The bytes of tensors on a stream, in pieces, each of which has to come within a minute or so.

A limit for a whole message would have to suit its size, and whoever announced much could hold room and say nothing for
hours. With pieces it has to go on all the time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from minga.core.errors import RejectedError, SilentError
from minga.core.refusal_code import RefusalCode
from minga.network.rpc.stream import MessageStream
from minga.split.wire.messages import TensorHeader
from minga.split.wire.tensors import Body

PIECE_BYTES: Final = 1 << 19
PIECE_S: Final = 60.0

Limit = Callable[[float], AbstractAsyncContextManager[None]]
"""A timeout by seconds, such as that of `KeepaliveTicker`."""


async def send_bodies(stream: MessageStream, bodies: Sequence[Body], limit: Limit, piece_s: float = PIECE_S) -> None:
    """Send the bytes of tensors. Raises `SilentError` if the other side does not read a piece within `piece_s`."""
    for body in bodies:
        view = memoryview(body)
        for start in range(0, view.nbytes, PIECE_BYTES):
            try:
                async with limit(piece_s):
                    await stream.send_bulk(view[start : start + PIECE_BYTES])
            except TimeoutError as error:
                raise SilentError(f"it read nothing for {piece_s:.0f} s", peer=stream.peer) from error


async def receive_bodies(stream: MessageStream, headers: Sequence[TensorHeader], limit: Limit) -> list[Body]:
    """The bytes of tensors whose headers were checked.

    Raises `SilentError` if a piece does not come within `PIECE_S`, and as `MessageStream`.
    """
    bodies: list[Body] = []
    for header in headers:
        body = bytearray(header.size_bytes)
        view = memoryview(body)
        for start in range(0, view.nbytes, PIECE_BYTES):
            try:
                async with limit(PIECE_S):
                    await stream.receive_bulk_into(view[start : start + PIECE_BYTES])
            except TimeoutError as error:
                raise SilentError(
                    f"{PIECE_BYTES} bytes did not come within {PIECE_S:.0f} s", peer=stream.peer
                ) from error
        bodies.append(body)
    return bodies


# ---- Room for so many bytes, which streams take in the order in which they come: back-pressure.


MAX_WAITING: Final = 256
SHARE: Final = 4
"""Several streams of one owner take at most this part of the room."""


class Room:
    """`size_bytes` in all; belongs to one event loop. A stream that finds no room waits, and none goes past it."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes, self._taken_bytes = size_bytes, 0
        self._owned: Counter[str] = Counter()
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def taken_bytes(self) -> int:
        """How much of it is taken."""
        return self._taken_bytes

    @contextlib.asynccontextmanager
    async def held(self, wanted_bytes: int, owner: str) -> AsyncIterator[None]:
        """Inside, so many bytes are taken. Raises `RejectedError` for more than there will ever be, and (busy) if too
        many wait for room already, or if this is not the only stream of its owner and they want more than their share.
        """
        if wanted_bytes > self._size_bytes:
            raise RejectedError(f"{wanted_bytes} bytes at once, where there is room for {self._size_bytes} in all")
        self._check_share(owner, wanted_bytes)
        with self._owned_by(owner, wanted_bytes):
            if self._queue or self._taken_bytes + wanted_bytes > self._size_bytes:
                await self._wait(wanted_bytes)
            else:
                self._taken_bytes += wanted_bytes
            try:
                yield
            finally:
                self._free(wanted_bytes)

    @contextlib.contextmanager
    def taken(self, size_bytes: int, owner: str) -> Iterator[None]:
        """Inside, so many bytes are taken whether there is room for them or not: they are there already."""
        self._taken_bytes += size_bytes
        try:
            with self._owned_by(owner, size_bytes):
                yield
        finally:
            self._free(size_bytes)

    def check(self, owner: str) -> None:
        """Raise `RejectedError` (busy) if nothing more should be made for this owner that takes room here."""
        if self._taken_bytes >= self._size_bytes:
            raise RejectedError("too many answers are not read yet", code=RefusalCode.BUSY)
        self._check_share(owner, 0)

    def _check_share(self, owner: str, wanted_bytes: int) -> None:
        owned_bytes = self._owned[owner]
        if owned_bytes and owned_bytes + wanted_bytes > self._size_bytes // SHARE:
            raise RejectedError(f"{owned_bytes + wanted_bytes} bytes for one client", code=RefusalCode.BUSY)

    @contextlib.contextmanager
    def _owned_by(self, owner: str, size_bytes: int) -> Iterator[None]:
        self._owned[owner] += size_bytes
        try:
            yield
        finally:
            self._owned[owner] -= size_bytes
            if not self._owned[owner]:
                del self._owned[owner]

    async def _wait(self, wanted_bytes: int) -> None:
        if len(self._queue) >= MAX_WAITING:
            raise RejectedError("too many batches wait here", code=RefusalCode.BUSY)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (wanted_bytes, turn)
        self._queue.append(entry)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._free(wanted_bytes)
            else:
                with contextlib.suppress(ValueError):  # whoever made room meanwhile has passed it over
                    self._queue.remove(entry)
                self._free(0)
            raise

    def _free(self, freed_bytes: int) -> None:
        self._taken_bytes -= freed_bytes
        while self._queue and self._taken_bytes + self._queue[0][0] <= self._size_bytes:
            wanted, turn = self._queue.popleft()
            self._taken_bytes += wanted
            if not turn.done():
                turn.set_result(None)
            else:
                self._taken_bytes -= wanted
