"""Telling an event loop, from any thread, that something changed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from minga.core.aio.signal import Signal

TELL_PERIOD_S = 0.25
"""Shortest time, in seconds, between two pieces of news that can wait a little."""


class LoopNotifier:
    """Fires `changed` on the loop, at once for what is urgent and now and then for the rest."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.changed = Signal()
        self._loop = loop
        self._told_s, self._is_due = -TELL_PERIOD_S, False

    def tell(self) -> None:
        """Something urgent changed."""
        self.call(self.changed.fire)

    def tell_sparingly(self) -> None:
        """Tell at once, but not more often than every `TELL_PERIOD_S`: what comes in between is told at its end."""
        if self._is_due:
            return
        now_s = self._loop.time()
        if now_s - self._told_s >= TELL_PERIOD_S:
            self._told_s = now_s
            self.tell()
        else:
            self._is_due = True
            self.call(self._loop.call_later, TELL_PERIOD_S, self._tell_late)

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call `function` on the loop, if that still runs."""
        if asyncio._get_running_loop() is self._loop:  # noqa: SLF001  (it need not be woken)
            self._loop.call_soon(function, *arguments)
            return
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile, and nobody waits for this any more
            self._loop.call_soon_threadsafe(function, *arguments)

    def _tell_late(self) -> None:
        self._told_s, self._is_due = self._loop.time(), False
        self.changed.fire()
