"""Room for so many bytes, which streams take in the order in which they come: back-pressure."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from minga.core.errors import RejectedError
from minga.core.refusal_code import RefusalCode

MAX_WAITING: Final = 256


class Room:
    """`size_bytes` in all; belongs to one event loop. Whoever finds no room waits, and nobody goes past who waits."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes, self._taken_bytes = size_bytes, 0
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def taken_bytes(self) -> int:
        """How much of it is taken."""
        return self._taken_bytes

    @contextlib.asynccontextmanager
    async def held(self, wanted_bytes: int) -> AsyncIterator[None]:
        """Inside, so many bytes are taken. Raises `RejectedError` (busy) if too many wait for room already, and for
        more than there will ever be.
        """
        if wanted_bytes > self._size_bytes:
            raise RejectedError(f"{wanted_bytes} bytes at once, where there is room for {self._size_bytes} in all")
        if self._queue or self._taken_bytes + wanted_bytes > self._size_bytes:
            await self._wait(wanted_bytes)
        else:
            self._taken_bytes += wanted_bytes
        try:
            yield
        finally:
            self._free(wanted_bytes)

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
