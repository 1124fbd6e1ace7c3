"""How long a transfer of tensors may take: in proportion to its size, and only as long as something comes.

Bytes that do not come in time count as withheld, which may cost their owner its place; so a limit that is the same for
all sizes would exclude peers with slow lines and long parts. A peer that sends nothing is given up much sooner.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from minga.network.rpc.framing import MessageStream
from minga.network.rpc.node import Node

SLOW_LINE_BYTES_PER_S: Final = 125_000
"""1 Mbit/s: a peer with less cannot take part in time anyway."""
LEAST_TRANSFER_S: Final = 10.0
STALL_S: Final = 10.0
"""Seconds without a single byte after which a transfer is given up, however much time there is left."""

LOOK_S: Final = 2.0
"""Seconds for which a member that rechecks others waits for what that takes, beyond its own computing: of the `slack_s`
of `WaitPolicy` both who validates and who then judges may need so many."""


def transfer_limit_s(size_bytes: int) -> float:
    """Seconds after which a transfer of so many bytes is given up."""
    return LEAST_TRANSFER_S + size_bytes / SLOW_LINE_BYTES_PER_S


class _TransferGuard:
    """Lets a timeout expire when nothing moves on a stream; pulses are no movement."""

    def __init__(self, stream: MessageStream, limit: asyncio.Timeout) -> None:
        self._stream, self._limit = stream, limit

    def on_tick(self, _: int) -> None:
        if self._stream.idle_s > STALL_S and self._limit.when() is None:
            self._limit.reschedule(asyncio.get_running_loop().time())


@contextlib.asynccontextmanager
async def transfer(node: Node, stream: MessageStream, size_bytes: int) -> AsyncIterator[None]:
    """Within it so many bytes come over a stream of `node`. Raises `TimeoutError` if that takes too long, or stalls."""
    async with node.clockwork.timeout(transfer_limit_s(size_bytes)), asyncio.timeout(None) as limit:
        guard = _TransferGuard(stream, limit)
        node.clockwork.add(guard)
        try:
            yield
        finally:
            node.clockwork.remove(guard)
