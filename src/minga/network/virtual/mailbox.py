"""A queue of what came and waits to be taken, which ends its readers when it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from minga.core.errors import MingaError

T = TypeVar("T")
MakeError = Callable[[], MingaError]


class Mailbox(Generic[T]):
    """A queue that can be closed, which ends its waiting readers."""

    def __init__(self) -> None:
        self._items: list[T] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._error: MakeError | None = None

    def put(self, item: T) -> None:
        """Add an item; it is forgotten if the mailbox has failed."""
        if self._error is None:
            self._items.append(item)
            self._wake()

    def fail(self, error: MakeError) -> None:
        """Make pending and later `get`s raise `error()`."""
        if self._error is None:
            self._error = error
            self._items.clear()
            while self._waiters:
                self._wake()

    async def get(self) -> T:
        """Wait for the next item."""
        while not self._items:
            if self._error is not None:
                raise self._error()
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
                elif self._items:
                    self._wake()  # this waiter had been chosen for an item that it will not take
                raise
        return self._items.pop(0)

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.pop(0)
            if not waiter.done():
                waiter.set_result(None)
                return
