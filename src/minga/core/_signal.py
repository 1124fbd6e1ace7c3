"""A wake-up call for any number of waiting tasks."""

from __future__ import annotations

import asyncio


class Signal:
    """Something changed: `fire` wakes every task that waits at that moment. Belongs to one event loop."""

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], None] = {}  # a dict keeps the order, so that simulated runs repeat

    def fire(self) -> None:
        """Wake all who wait."""
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the next `fire`, or until `timeout_s` seconds of loop time passed."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            await asyncio.wait([waiter], timeout=timeout_s)
        finally:
            self._waiters.pop(waiter, None)
