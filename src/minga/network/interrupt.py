"""What transports wait for: what may come to nothing because a stream or connection ends meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from minga.core.errors import MingaError

T = TypeVar("T")
MakeError = Callable[[], MingaError]


class Interrupt:
    """Breaks off the waiting calls of one stream or connection, and all later ones, with an error.

    The error is made where it is raised. A future would keep the error with its frames, and the frames would keep the
    future, so large objects in them would wait for the garbage collector.
    """

    def __init__(self) -> None:
        self._make_error: Callable[[], Exception] | None = None
        self._waiting: set[asyncio.Future[Any]] = set()
        self._broken_off: set[asyncio.Future[Any]] = set()

    @property
    def fired(self) -> bool:
        """Whether nothing can be waited for any more."""
        return self._make_error is not None

    def fire(self, make_error: Callable[[], Exception]) -> None:
        """Let everything that waits raise `make_error()`; only the first call counts."""
        if self._make_error is None:
            self._make_error = make_error
            for future in self._waiting:
                if not future.done():
                    self._broken_off.add(future)
                    future.set_result(None)

    def check(self) -> None:
        """Raise the error if the interrupt fired."""
        if self._make_error is not None:
            raise self._make_error()

    async def wait(self, future: asyncio.Future[T]) -> T:
        """Await `future`, which must be this caller's own, unless the interrupt fires first."""
        self.check()
        self._waiting.add(future)
        try:
            result = await future
            if future in self._broken_off:
                self.check()
            return result
        finally:
            self._waiting.discard(future)
            self._broken_off.discard(future)


class AcceptQueue(Generic[T]):
    """What came and waits to be accepted: connections of a network, streams of a connection. When it fails its waiting
    takers do. A taker that is cancelled loses nothing.
    """

    def __init__(self) -> None:
        self._items: list[T] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._error: MakeError | None = None

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> None:
        """Add an item; it is forgotten if the queue has failed."""
        if self._error is None:
            self._items.append(item)
            self._wake()

    def fail(self, error: MakeError) -> None:
        """Make pending and later calls raise `error()`, and drop what nobody took."""
        if self._error is None:
            self._error = error
            self._items.clear()
            while self._waiters:
                self._wake()

    async def take(self) -> T:
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
