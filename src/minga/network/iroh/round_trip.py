"""The round trip of a new connection, without the time that the other side took to accept it.

Theory of operation. The transport's first sample is the dial itself, which waits for the other side's event loop: up to
a second where that is busy. Later samples weigh an eighth each, and few come, since most that two peers say goes over
TCP. So the estimate would stay ten times too long for minutes, and with it the patience with a peer that is silent. A
few packets that have to be acknowledged, for as long as the estimate falls, make it that of the path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

SHORT_S: Final = 0.02
"""A round trip of at most so many seconds makes no difference to anything."""

PAUSE_S: Final = 0.07
"""Seconds between two packets, so that each is acknowledged by itself."""

PACKETS: Final = 4
MOST_ROUNDS: Final = 8
FALLS: Final = 0.8
"""An estimate that fell to more than this share of what it was is near that of the path."""


async def settle(ask: Callable[[], Awaitable[None]], round_trip_s: Callable[[], float | None]) -> None:
    """Let the estimate `round_trip_s` (seconds; None: unknown) come down; `ask` sends a packet to acknowledge."""
    for _ in range(MOST_ROUNDS):
        if (before_s := round_trip_s() or 0.0) <= SHORT_S:
            return
        for _ in range(PACKETS):
            await ask()
            await asyncio.sleep(PAUSE_S)
        await asyncio.sleep(before_s)
        if (round_trip_s() or 0.0) > FALLS * before_s:
            return
