"""How much has to come over a socket before its reader is woken.

Theory of operation. Over a slow link bytes arrive packet by packet. A reader that is woken for each packet spends more
time on waking than on the bytes: with many slow connections that is most of the cost of a round. So while a large frame
is being filled the kernel waits (by `SO_RCVLOWAT`) for about as much as arrives in `WAKE_S` seconds, but never for more
than is certain to come. If the link gets slower the reader is woken for fewer bytes.

Where the option does not exist every packet wakes the reader, and all else stays the same.
"""

from __future__ import annotations

import asyncio
import socket

WAKE_S = 0.25
SLOWER_S = 0.5
"""If what was waited for does not come within this time, the reader takes what there is."""

LEAST_BYTES, MOST_BYTES = 4 << 10, 64 << 10
"""It is not worth while to wait for less; and more at once is not faster."""

FAST_RATE = 2e6
"""At this rate in bytes per second they arrive in large lots anyway."""


class LowWater:
    """The low-water mark of the socket of a transport."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._mark, self._rate = 1, 0.0
        self._woken_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, missing: int) -> None:
        """A frame is waited for of which `missing` bytes at least have to come."""
        self._woken_s = self._loop.time()
        if missing >= LEAST_BYTES and self._rate < FAST_RATE:
            self._timer = self._loop.call_later(SLOWER_S, self._look)
            self._set(missing)

    def came(self, size: int, missing: int) -> None:
        """`size` bytes came; `missing` ones at least are to come yet."""
        now = self._loop.time()
        self._rate = size / max(now - self._woken_s, 1e-4)
        self._woken_s = now
        if self._timer is not None:
            self._set(missing)

    def end(self) -> None:
        """Whatever comes next wakes the reader."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._set(0)

    def _set(self, missing: int) -> None:
        mark = min(int(WAKE_S * self._rate), MOST_BYTES, missing)
        mark = mark if mark >= LEAST_BYTES and self._rate < FAST_RATE else 1
        if mark == self._mark or (mark > 1 and self._mark <= mark <= 2 * self._mark):
            return
        self._mark = mark
        try:
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark)
        except OSError:  # closed by now, or a system without this option
            self._mark = 1

    def _look(self) -> None:
        """Take what there is if the link got slower."""
        wait_s = self._woken_s + SLOWER_S - self._loop.time()
        if wait_s <= 0.0:
            wait_s = SLOWER_S
            self._set(0)
        self._timer = self._loop.call_later(wait_s, self._look)
