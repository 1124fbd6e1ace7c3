"""Accepting connections: a connection is kept once its handshake is complete.

Until then strangers cost little: `MAX_WAITING` connections may wait for their hello, each for `HELLO_TIMEOUT_S`.
When there are more, the one that has waited longest makes room, since an honest peer says hello within a round trip.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from minga.core.errors import RemoteError
from minga.core.events.bus import EventBus
from minga.core.events.network import PeerTurnedAway
from minga.core.thread_guard import loop_bound
from minga.network.interface import Connection, Network
from minga.network.rpc.handshake import Hello

HELLO_TIMEOUT_S = 10.0
MAX_WAITING = 128


@loop_bound
class AcceptLoop:
    """Accepts connections on `network`. `greet` runs the handshake, `adopt` takes a connection that passed it, `spawn`
    runs a task.
    """

    def __init__(
        self,
        network: Network,
        events: EventBus,
        greet: Callable[[Connection], Awaitable[Hello]],
        adopt: Callable[[Connection, Hello], None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self.waiting: dict[Connection, None] = {}
        """Connections without a hello so far, oldest first."""
        self._network, self._events = network, events
        self._greet, self._adopt, self._spawn = greet, adopt, spawn

    async def run(self) -> None:
        """Accept connections until the network is closed."""
        while True:
            connection = await self._network.accept()
            if len(self.waiting) >= MAX_WAITING:
                oldest = next(iter(self.waiting))
                del self.waiting[oldest]
                self._spawn(oldest.close())  # which ends its greeting
            self.waiting[connection] = None
            self._spawn(self._receive(connection))

    async def _receive(self, connection: Connection) -> None:
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                hello = await self._greet(connection)
        except (RemoteError, TimeoutError) as error:
            self._events.emit(PeerTurnedAway(peer=connection.peer_id, reason=str(error) or "no hello"))
            await connection.close()
            return
        finally:
            self.waiting.pop(connection, None)
        self._adopt(connection, hello)
