"""For how long something that failed is not tried again."""

from __future__ import annotations

import asyncio

FIRST_S = 30.0
LONGEST_S = 1920.0


class Setback:
    """Lasts `FIRST_S` seconds of the running loop, and each time twice as long until it is overcome."""

    def __init__(self) -> None:
        self._until_s, self._next_s = float("-inf"), FIRST_S

    @property
    def is_on(self) -> bool:
        """Whether it is still too early to try again."""
        return asyncio.get_running_loop().time() < self._until_s

    def suffer(self) -> None:
        """It failed; what fails while a setback lasts is the same failure."""
        if not self.is_on:
            self._until_s = asyncio.get_running_loop().time() + self._next_s
            self._next_s = min(2 * self._next_s, LONGEST_S)

    def overcome(self) -> None:
        """It worked."""
        self._next_s = FIRST_S
