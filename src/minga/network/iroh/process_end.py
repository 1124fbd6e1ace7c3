"""Whether the process at the other end of a connection has ended, found out long before its silence shows it.

Theory of operation. When a process ends, however it does, its system closes all its TCP connections. It does not close
them while the process is stopped or busy, and they outlive a cut. That alone proves nothing: a living peer aborts the
connection of a stream that it resets, which may be the only one, and routers end connections, too. So this side then
asks over iroh, whose threads at the other end acknowledge each packet whatever Python does there. If no TCP connection
is left, and nothing at all comes over UDP although it was asked for, the process is gone. On a link of no length that
takes `SETTLE_S + ASKED * PAUSE_S`.

A pause counts only if this process slept through it on time: one that was stopped or starved hears nothing either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

SETTLE_S: Final = 0.05
"""Seconds, besides a round trip, in which what was sent before the end arrives."""

PAUSE_S: Final = 0.05
"""Seconds, besides a round trip, that an answer may take."""

ASKED: Final = 5
"""How often it is asked in vain until its process counts as ended."""

MOST_ASKED: Final = 20
LATE: Final = 2.0
"""A pause that took so many times as long does not count."""


async def has_ended(
    ask: Callable[[], Awaitable[None]], received: Callable[[], int], round_trip_s: Callable[[], float | None]
) -> bool:
    """Whether the other side's process has ended, after its TCP connections did.

    `ask` sends a packet that has to be acknowledged, `received` counts the bytes that came over UDP so far, and
    `round_trip_s` is in seconds (None: unknown).
    """
    loop = asyncio.get_running_loop()
    await asyncio.sleep(SETTLE_S + (round_trip_s() or 0.0))
    before, in_vain = received(), 0
    for _ in range(MOST_ASKED):
        await ask()
        pause_s, asked_s = PAUSE_S + (round_trip_s() or 0.0), loop.time()
        await asyncio.sleep(pause_s)
        if received() != before:
            return False
        in_vain += loop.time() - asked_s < LATE * pause_s
        if in_vain == ASKED:
            return True
    return False
