"""One probe, whose partners begin each phase together."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import math
from collections.abc import Iterator

from minga.network.interface import PeerId

ENOUGH = 0.85
"""The share of the partners that a probe needs to show anything."""


class Barrier:
    """Opens once all expected partners have come that have not left."""

    def __init__(self, expected: int) -> None:
        self.came = 0
        self._expected = expected
        self._opened = asyncio.Event()

    async def wait(self) -> None:
        """Come, and wait for the others."""
        self.came += 1
        self._review()
        try:
            await self._opened.wait()
        except BaseException:
            self.came -= 1
            raise

    def leave(self) -> None:
        """Expect one partner less."""
        self._expected -= 1
        self._review()

    def _review(self) -> None:
        if self.came >= self._expected:
            self._opened.set()


class PathOutcome(enum.Enum):
    """How the part of one path in a probe ended; `BROKEN_OFF`: by this peer itself."""

    MEASURED = enum.auto()
    BROKEN_OFF = enum.auto()
    REFUSED = enum.auto()


class ProbeSession:
    """One probe: its partners begin each phase together. Unless it `fills` the upload there is one phase only."""

    def __init__(self, partners: int, *, fills: bool) -> None:
        self.enough, self.fills = math.ceil(ENOUGH * partners), fills
        self.accepted: set[PeerId] = set()
        self.ready, self.filled = Barrier(partners), Barrier(partners)
        self.admitted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def answer(self, *, admitted: bool) -> None:
        """The partner that is asked first answered; only its first answer counts."""
        if not self.admitted.done():
            self.admitted.set_result(admitted)

    @contextlib.contextmanager
    def taking_part(self) -> Iterator[None]:
        """A partner that fails leaves both barriers, so the others do not wait for it."""
        try:
            yield
        except BaseException:
            self.ready.leave()
            self.filled.leave()
            raise
