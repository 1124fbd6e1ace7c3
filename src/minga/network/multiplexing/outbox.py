"""What waits to be written to a carrier: as much as there is goes in one write, while the next batch gathers.

Theory of operation. To hand bytes to the transport costs as much for one message as for a hundred, and far more than
the message. So streams never write themselves. Frames that are put in the same turn of the loop, or while a write is
under way, leave together. What nobody waits for is put `lazily` and leaves with whatever comes next, or after `LAZY_S`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from minga.core.errors import MingaError
from minga.network.interface import Buffer, Stream

LAZY_S = 0.02
"""Pushes wait for the end of the one before: with 0.1 s the steps of peers far from each other came later."""
MOST_WAITING_BYTES = 1 << 16
"""Streams wait before they put more while so many bytes have not left."""


class Outbox:
    """Writes to `stream` until that fails; `wrote` is called after each write."""

    def __init__(self, stream: Stream, wrote: Callable[[], None]) -> None:
        self._stream, self._wrote = stream, wrote
        self._waiting: list[Buffer] = []
        self._waiting_bytes = 0
        self._is_due = self._is_writing = False
        self._due: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._room: list[asyncio.Future[None]] = []
        self._error: Callable[[], MingaError] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and no write is under way."""
        return not (self._waiting or self._is_writing)

    def put(self, *frames: Buffer, lazily: bool = False) -> None:
        """Let frames leave. Their bytes must not change any more."""
        if self._error is not None:
            return
        self._waiting.extend(frames)
        self._waiting_bytes += sum(map(len, frames))
        if not lazily:
            self._wake()
        elif self._timer is None and not self._is_due:
            self._timer = asyncio.get_running_loop().call_later(LAZY_S, self._be_due)

    async def room(self) -> None:
        """Wait until there is room for more. Raises what the carrier was lost by."""
        while self._waiting_bytes >= MOST_WAITING_BYTES and self._error is None:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._room.append(turn)
            await turn
        if self._error is not None:
            raise self._error()

    def fail(self, error: Callable[[], MingaError]) -> None:
        """Write nothing more; those that wait for room get the error."""
        if self._error is None:
            self._error = error
            self._waiting.clear()
            self._give_room()
            if self._timer is not None:
                self._timer.cancel()

    async def run(self) -> None:
        """Write whatever is put. Raises `UnreachableError` or `ClosedError` when the stream is lost."""
        while True:
            if not self._is_due:
                self._due = asyncio.get_running_loop().create_future()
                await self._due
            frames, self._waiting, self._waiting_bytes = self._waiting, [], 0
            self._is_due, self._is_writing = False, True
            await self._stream.write(b"".join(frames))
            self._is_writing = False
            self._wrote()
            self._give_room()

    def _wake(self) -> None:
        if not self._is_due:
            self._is_due = True
            if self._due is not None and not self._due.done():
                self._due.set_result(None)

    def _be_due(self) -> None:
        self._timer = None
        if self._waiting:
            self._wake()

    def _give_room(self) -> None:
        for turn in self._room:
            if not turn.done():
                turn.set_result(None)
        self._room.clear()
