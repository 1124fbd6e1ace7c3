"""What breaks off the waiting calls of a stream or connection, in whichever transport they wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


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
