"""Answering the calls of others: finds the handler of each stream that a peer opens, and says no in words."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from minga.core.errors import ProtocolError, RejectedError, RemoteError, UnreachableError
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.network.interface import Connection, PeerId, Stream
from minga.network.rpc.framing import MessageStream
from minga.network.rpc.handshake import MULTIPLEX, Call
from minga.network.rpc.keepalive import CarrierSigns

MAX_STREAMS_PER_PEER = 256
REFUSAL_S = 5.0
"""Seconds that a refused caller has to take note of it."""

Handler = Callable[[PeerId, MessageStream], Awaitable[None]]


@loop_bound
class Server:
    """Serves streams by `handlers`. `wrap` makes message streams of streams, `spawn` runs a task, `offend` counts a
    breach of the protocol, `permits` says who may call what, `take_carrier` goes on with a stream that is to carry
    others.
    """

    def __init__(
        self,
        wrap: Callable[[Stream, Connection, CarrierSigns | None], MessageStream],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        offend: Callable[[PeerId, str], None],
        permits: Callable[[PeerId, str], bool],
        take_carrier: Callable[[Connection, MessageStream], Awaitable[None]],
    ) -> None:
        self.handlers: dict[str, Handler] = {}
        self.open_streams: dict[PeerId, int] = {}
        """How many streams each peer has open here."""
        self._wrap, self._spawn, self._offend, self._permits = wrap, spawn, offend, permits
        self._take_carrier = take_carrier

    async def serve_connection(self, connection: Connection) -> None:
        """Serve every stream that comes over a connection, until it is lost."""
        with contextlib.suppress(UnreachableError):
            while True:
                self.take(await connection.accept_stream(), connection)

    def take(self, stream: Stream, connection: Connection, carrier: CarrierSigns | None = None) -> None:
        """Serve a stream that came over a connection, or over its carrier."""
        peer = connection.peer_id
        if self.open_streams.get(peer, 0) >= MAX_STREAMS_PER_PEER:
            self._offend(peer, "too many streams at once")
            self._spawn(stream.reset())
            return
        self._count(peer, 1)
        self._spawn(self._serve_stream(self._wrap(stream, connection, carrier), connection))

    async def _serve_stream(self, stream: MessageStream, connection: Connection) -> None:
        try:
            call = await stream.receive(Call)
            if call.method == MULTIPLEX:
                self._count(stream.peer, -1)  # what it carries is counted
                try:
                    await self._take_carrier(connection, stream)
                finally:
                    self._count(stream.peer, 1)
                return
            stream.begin_pulses()
            handler = self.handlers.get(call.method)
            if handler is None:
                raise RejectedError(f"no such method: {call.method[:40]}", code=RefusalCode.METHOD)
            if not self._permits(stream.peer, call.method):
                raise RejectedError(f"not admitted to {call.method[:40]}", code=RefusalCode.ACCESS)
            await handler(stream.peer, stream)
            await stream.finish()
            await stream.receive_end()
        except RejectedError as error:
            with contextlib.suppress(RemoteError, TimeoutError):
                await stream.refuse(error.code, error.message)
                async with asyncio.timeout(REFUSAL_S):
                    await stream.drain()
        except ProtocolError as error:
            self._offend(stream.peer, str(error))
        finally:
            self._count(stream.peer, -1)
            await stream.close()

    def _count(self, peer: PeerId, more: int) -> None:
        self.open_streams[peer] = self.open_streams.get(peer, 0) + more
        if not self.open_streams[peer]:
            del self.open_streams[peer]
