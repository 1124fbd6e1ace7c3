"""Receipts on their way: they wait for the write before them, and no reader waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

MAX_BYTES = 1 << 12
"""Bytes that may wait; later reports are dropped."""


class ReceiptQueue:
    """Frames that are sent one after the other, those that wait together."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits or is being written."""
        return self._task is None or self._task.done()

    def add(self, frame: bytes, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Send a frame soon, by `write`."""
        if len(self._waiting) < MAX_BYTES:
            self._waiting += frame
            if self.is_empty:
                self._task = asyncio.get_running_loop().create_task(self._empty(write))

    def close(self) -> None:
        """Send nothing more."""
        if self._task is not None:
            self._task.cancel()

    async def _empty(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        while self._waiting:
            frames, self._waiting = bytes(self._waiting), bytearray()
            await write(frames)
