"""How long a transfer of tensors may take: in proportion to its size, and only as long as something comes.

Bytes that do not come in time count as withheld, which may cost their owner its place; so a limit that is the same for
all sizes would exclude peers with slow lines and long parts. A peer that sends nothing is given up much sooner.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Final

from minga.core.errors import RejectedError, SilentError
from minga.core.refusal_code import RefusalCode
from minga.network.interface import PeerId
from minga.network.rpc.framing import MessageStream
from minga.network.rpc.node import Node
from minga.security.parts.running_digest import RunningDigest

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


async def receive_hashed(stream: MessageStream, data: memoryview) -> bytes:
    """Fill `data` with the next bulk frame of a stream, and return its digest."""
    running = RunningDigest(data)
    await stream.receive_bulk_into(data, running.filled)
    return running.digest()


async def receive_whole(stream: MessageStream, data: memoryview) -> bytes:
    """Fill `data` from a stream on which nothing comes after that, and return its digest."""
    digest = await receive_hashed(stream, data)
    await stream.finish()
    await stream.receive_end()
    return digest


class ServingLimit:
    """How many answers a peer is sent at once (`each`), and all together: what one peer takes must not starve others.

    Each answer may take as long as it takes over a slow line.
    """

    def __init__(self, node: Node, each: int, total: int | None = None) -> None:
        self._node, self._each, self._total = node, each, total
        self.serving: Counter[PeerId] = Counter()

    @contextlib.asynccontextmanager
    async def serve(self, peer: PeerId, size_bytes: int) -> AsyncIterator[None]:
        """Within it so many bytes are sent to a peer. Raises `RejectedError` with code `BUSY` if too many answers are
        under way, and `SilentError` if the peer does not take this one in time.
        """
        full = self._total is not None and self.serving.total() >= self._total
        if full or self.serving[peer] >= self._each:
            raise RejectedError(
                f"{self._each} answers are sent to a peer at once, and no more here", code=RefusalCode.BUSY
            )
        self.serving[peer] += 1
        try:
            async with self._node.clockwork.timeout(transfer_limit_s(size_bytes)):
                yield
        except TimeoutError as error:
            raise SilentError("it did not take an answer in time", peer=peer) from error
        finally:
            self.serving[peer] -= 1
            if not self.serving[peer]:
                del self.serving[peer]
