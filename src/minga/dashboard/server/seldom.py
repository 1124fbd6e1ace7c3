"""What has to be asked of the peer, for any number of viewers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic, TypeVar

T = TypeVar("T")

PERIOD_S: Final = 10.0
"""A value is made at most this often."""


class Seldom(Generic[T]):
    """A value that `make` makes on a thread beside the server's, since that blocks."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make, self._lock = make, asyncio.Lock()
        self._made: tuple[float, T] | None = None

    async def get(self) -> T:
        """The value, which may be `PERIOD_S` old. Raises what `make` raises."""
        async with self._lock:
            now_s = asyncio.get_running_loop().time()
            if self._made is None or now_s - self._made[0] > PERIOD_S:
                value = await asyncio.to_thread(self._make)
                self._made = asyncio.get_running_loop().time(), value
            return self._made[1]
