"""A queue of arrivals that wait to be taken: connections of a network, streams of a connection."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

from minga.network.interrupt import Interrupt

T = TypeVar("T")


class AcceptQueue(Generic[T]):
    """A queue whose waiting takers an interrupt can break off. A taker that is cancelled loses nothing."""

    def __init__(self, interrupt: Interrupt) -> None:
        self._interrupt = interrupt
        self._items: deque[T] = deque()
        self._takers: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> None:
        """Add an item and wake one taker."""
        self._items.append(item)
        self._wake_next()

    async def take(self) -> T:
        """Wait for the next item. Raises the interrupt's error once that fired."""
        self._interrupt.check()
        while not self._items:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._takers.append(turn)
            try:
                await self._interrupt.wait(turn)
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled() and self._items:
                    self._wake_next()  # it was woken for an item that it now will not take
                raise
        return self._items.popleft()

    def clear(self) -> None:
        """Drop arrivals that were not taken."""
        self._items.clear()

    def _wake_next(self) -> None:
        while self._takers:
            turn = self._takers.popleft()
            if not turn.done():
                turn.set_result(None)
                return
