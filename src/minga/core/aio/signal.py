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
            _wake(waiter)

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the next `fire`, or until `timeout_s` seconds of loop time passed."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters[waiter] = None
        timer = None if timeout_s is None else loop.call_later(max(0.0, timeout_s), _wake, waiter)
        try:
            await waiter
        finally:
            self._waiters.pop(waiter, None)
            if timer is not None:
                timer.cancel()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
