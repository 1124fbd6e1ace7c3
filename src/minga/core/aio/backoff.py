"""For how long something that failed is not tried again."""

from __future__ import annotations

import asyncio


class Backoff:
    """Lasts `first_s` seconds of the running loop, and each time twice as long, up to `longest_s`, until overcome."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self._until_s, self._next_s = float("-inf"), first_s

    @property
    def is_on(self) -> bool:
        """Whether it is still too early to try again."""
        return asyncio.get_running_loop().time() < self._until_s

    def suffer(self) -> None:
        """Note a failure; further failures while the backoff lasts count as the same one."""
        if not self.is_on:
            self._until_s = asyncio.get_running_loop().time() + self._next_s
            self._next_s = min(2 * self._next_s, self._longest_s)

    def overcome(self) -> None:
        """It worked."""
        self._next_s = self._first_s
