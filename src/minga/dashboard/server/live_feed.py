"""What changed, to all viewers at once, as Server-Sent Events.

Every message repeats the ends of all curves and journals, so a viewer that was slow takes the newest message only, and
sees by the numbers in it whether it has to fetch the whole again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

MOST_VIEWERS: Final = 200
HEARTBEAT_S: Final = 15.0


class LiveFeed:
    """On one event loop. `viewers` counts the open streams."""

    def __init__(self) -> None:
        self.viewers = 0
        self._message: bytes | None = None
        self._news = asyncio.Event()
        self._closed = False

    @property
    def is_full(self) -> bool:
        """Whether no more viewers can follow."""
        return self.viewers >= MOST_VIEWERS

    def publish(self, message: bytes) -> None:
        """Send one JSON document, which has no line breaks, to all viewers."""
        self._message = b"data: " + message + b"\n\n"
        self._wake()

    def close(self) -> None:
        """End all streams, so that the server can end."""
        self._closed = True
        self._wake()

    async def follow(self) -> AsyncIterator[bytes]:
        """The messages from now on."""
        self.viewers += 1
        try:
            yield b"retry: 2000\n\n"
            while not self._closed:
                news = self._news
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        await news.wait()
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                if not self._closed and self._message is not None:
                    yield self._message
        finally:
            self.viewers -= 1

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
