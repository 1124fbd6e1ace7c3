"""For how long something that failed is not tried again: either paused for, or looked up before the next attempt."""

from __future__ import annotations

import asyncio


class Backoff:
    """Pauses of `first_s` seconds, and each time twice as long, up to `longest_s`, until overcome."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self._until_s, self._next_s = float("-inf"), first_s

    def next_s(self) -> float:
        """The seconds to pause now; the next pause is twice as long."""
        pause_s, self._next_s = self._next_s, min(2.0 * self._next_s, self._longest_s)
        return pause_s

    @property
    def is_on(self) -> bool:
        """Whether it is still too early to try again."""
        return asyncio.get_running_loop().time() < self._until_s

    def suffer(self) -> None:
        """Note a failure; further failures while the backoff lasts count as the same one."""
        if not self.is_on:
            self._until_s = asyncio.get_running_loop().time() + self.next_s()

    def overcome(self) -> None:
        """It worked."""
        self._next_s = self._first_s
