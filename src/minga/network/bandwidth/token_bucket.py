"""Keeps what a peer sends, or takes, below a cap that its owner set.

Theory of operation. A token bucket that may go into debt by one piece: a piece passes as soon as nothing is owed, and
then owes its size divided by the rate. Unused time is kept for `BURST_S` seconds only. So over t seconds at most `rate
* (t + BURST_S)` bytes and one piece pass. Messages and pulses go before bulk bytes, which wait in line piece by piece.
The more streams wait, the smaller the pieces, so that each stream moves several times a second and none looks dead to
the other side.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable

from minga.core.rate_cap import RateCap

BURST_S = 0.05
TURN_S = 0.1
"""Seconds in which every stream that waits should get a turn."""

SMALLEST_PIECE_BYTES, LARGEST_PIECE_BYTES = 512, 256 << 10

_EARLY_S = 1e-9
"""Timers may fire this much early."""


class TokenBucket:
    """One direction of an access link. `cap` is None without a limit; `wall_time` gives Unix time for its schedule."""

    def __init__(self, cap: RateCap | None, wall_time: Callable[[], float]) -> None:
        self._cap, self._wall_time = cap, wall_time
        self._free_s = -math.inf
        self._urgent: deque[tuple[asyncio.Future[None], int]] = deque()
        self._bulk: deque[tuple[asyncio.Future[None], int]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def rate(self) -> float | None:
        """The cap in bytes per second at present, None without one."""
        if self._cap is None:
            return None
        rate = self._cap.now(self._wall_time())
        return rate if rate < math.inf else None

    @property
    def piece_bytes(self) -> int:
        """How many bulk bytes to take at once."""
        rate = self.rate
        if rate is None:
            return LARGEST_PIECE_BYTES
        piece = rate * TURN_S / (len(self._bulk) + 1)
        return int(min(max(piece, SMALLEST_PIECE_BYTES), LARGEST_PIECE_BYTES))

    def charge(self, size: int) -> None:
        """`size` bytes have passed, without asking."""
        if (rate := self.rate) is not None:
            self._charge(size, rate)

    async def take(self, size: int, *, urgent: bool = False) -> None:
        """Wait until `size` bytes may pass; the urgent ones go first."""
        rate = self.rate
        if rate is None and not self._urgent and not self._bulk:
            return
        now = asyncio.get_running_loop().time()
        if rate is not None and not self._urgent and (urgent or not self._bulk) and self._free_s <= now + _EARLY_S:
            self._charge(size, rate)
            return
        turn = asyncio.get_running_loop().create_future()
        (self._urgent if urgent else self._bulk).append((turn, size))
        self._set_timer()
        await turn

    def _charge(self, size: int, rate: float) -> None:
        now = asyncio.get_running_loop().time()
        self._free_s = max(self._free_s, now - BURST_S) + size / rate

    def _set_timer(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(self._free_s, loop.time()), self._let_through)

    def _let_through(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while (queue := self._urgent or self._bulk) and self._free_s <= now + _EARLY_S:
            turn, size = queue.popleft()
            if not turn.done():  # a sender that was cancelled meanwhile sends nothing
                if (rate := self.rate) is not None:
                    self._charge(size, rate)
                turn.set_result(None)
        if self._urgent or self._bulk:
            self._set_timer()
