"""The carriers of one peer's connections: long-lived streams that carry all small messages.

Theory of operation. To open a stream costs more than all that a small message needs: some eighty foreign calls at both
ends. So where both hellos say that they multiplex, the side that dialled opens a stream for bulk, which goes over TCP
where that works, and it is kept: a message there costs a seventh of what it costs over iroh. A carrier that is lost
takes the streams on it along, as a reset does; the dialler opens another one. While there is none, streams are
opened on the connection itself.

A carrier that had to take the way of all other streams, because TCP was late or off, is replaced once TCP works.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from minga.core.aio import Backoff
from minga.core.errors import ProtocolError, RejectedError, RemoteError
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.network.backlog import Backlog
from minga.network.interface import Connection, PeerId, Stream
from minga.network.multiplexing.multiplexer import Multiplexer
from minga.network.multiplexing.substream import Substream
from minga.network.rpc.framing import MessageStream
from minga.network.rpc.handshake import MULTIPLEX, Call
from minga.network.rpc.keepalive import CarrierSigns, KeepaliveTicker, LastHeard

MAX_CARRIERS = 3
"""How many a connection may have at once: the present one, one that is about to end, and one that is not known to."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 60.0
"""Seconds until a carrier that was lost is replaced."""

FIRST_DETOUR_S, LONGEST_DETOUR_S = 10.0, 1920.0
"""Seconds until a way over TCP is looked for again."""

LAST_WORDS_S = 5.0
"""Seconds for which a carrier that was replaced is kept at least: streams may be opened on it until the news is there.
"""


class _Carriers:
    """The carriers of one connection, each with its signs of life; the last one is for new streams."""

    def __init__(self, last_heard: LastHeard, *, dialled: bool) -> None:
        self.last_heard, self.dialled = last_heard, dialled
        self.present: list[tuple[Multiplexer, CarrierSigns]] = []


@loop_bound
class Carriers:
    """Opens and serves streams on carriers. `wrap` makes the message stream on which a carrier is asked for, `serve`
    takes a stream that the other side opened, `spawn` runs a task, `offend` counts a breach of the protocol; `backlog`
    has what waits to be read on them.
    """

    def __init__(
        self,
        clockwork: KeepaliveTicker,
        backlog: Backlog,
        wrap: Callable[[Stream, Connection], MessageStream],
        serve: Callable[[Stream, Connection, CarrierSigns], None],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        offend: Callable[[PeerId, str], None],
    ) -> None:
        self._clockwork, self._backlog, self._wrap, self._serve = clockwork, backlog, wrap, serve
        self._spawn, self._offend = spawn, offend
        self._of: dict[Connection, _Carriers] = {}

    def begin(self, connection: Connection, last_heard: LastHeard, *, dialled: bool) -> None:
        """Have carriers for a connection whose two sides multiplex."""
        self._of[connection] = _Carriers(last_heard, dialled=dialled)
        if dialled:
            self._spawn(self._keep(connection, self._of[connection]))

    def end(self, connection: Connection) -> None:
        """The connection is gone."""
        self._of.pop(connection, None)

    def open(self, connection: Connection) -> tuple[Substream, CarrierSigns] | None:
        """A new stream for small messages, and the signs of life that it shares; None while there is no carrier."""
        carriers = self._of.get(connection)
        for multiplexer, signs in reversed(carriers.present if carriers else []):
            if not multiplexer.is_lost:
                return multiplexer.open(), signs
        return None

    async def take(self, connection: Connection, stream: MessageStream) -> None:
        """Go on with a stream as a carrier, as the other side asked; returns when it is lost."""
        carriers = self._of.get(connection)
        if carriers is None or carriers.dialled:
            raise ProtocolError("it has no carrier to open", peer=connection.peer_id)
        if len(carriers.present) >= MAX_CARRIERS:
            raise RejectedError("there are carriers enough", code=RefusalCode.BUSY)
        await self._carry(connection, carriers, stream.hand_over())

    async def _keep(self, connection: Connection, carriers: _Carriers) -> None:
        """Replace the carrier whenever it is lost, for as long as the connection lasts."""
        pauses, detours = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S), Backoff(FIRST_DETOUR_S, LONGEST_DETOUR_S)
        while not connection.is_closed:
            with contextlib.suppress(RemoteError):
                carrier = await connection.open_stream(bulk=True)
                running = await self._begin(connection, carriers, carrier)
                if carrier.is_detour:
                    running = await self._improve(connection, carriers, running, detours)
                begun_s = asyncio.get_running_loop().time()
                await asyncio.wait({running})
                if asyncio.get_running_loop().time() - begun_s > LONGEST_PAUSE_S:
                    pauses.overcome()
            await asyncio.sleep(pauses.next_s())

    async def _begin(self, connection: Connection, carriers: _Carriers, carrier: Stream) -> asyncio.Task[None]:
        stream = self._wrap(carrier, connection)
        try:
            await stream.send(Call(MULTIPLEX))
        except BaseException:
            await stream.close()
            raise
        return self._spawn(self._carry(connection, carriers, stream.hand_over()))

    async def _improve(
        self, connection: Connection, carriers: _Carriers, running: asyncio.Task[None], detours: Backoff
    ) -> asyncio.Task[None]:
        """Look for a better way for the carrier now and then; returns the task of the one to which it was found, or of
        the old one once that is lost.
        """
        while not running.done():
            await asyncio.wait({running}, timeout=detours.next_s())
            if not running.done():
                carrier = await connection.open_stream(bulk=True)
                if not carrier.is_detour:
                    replaced = [multiplexer for multiplexer, _ in carriers.present]
                    successor = await self._begin(connection, carriers, carrier)
                    for multiplexer in replaced:
                        self._spawn(self._retire(multiplexer))
                    return successor
                await carrier.reset()
        return running

    async def _retire(self, multiplexer: Multiplexer) -> None:
        """End a carrier when the other side knows of its successor and no stream is on it any more."""
        await asyncio.sleep(LAST_WORDS_S)
        while not multiplexer.is_idle:
            await asyncio.sleep(LAST_WORDS_S)
        multiplexer.give_up()

    async def _carry(self, connection: Connection, carriers: _Carriers, carrier: Stream) -> None:
        peer, signs = connection.peer_id, CarrierSigns(self._clockwork, carriers.last_heard)

        def arrived(stream: Substream) -> None:
            self._serve(stream, connection, signs)

        multiplexer = Multiplexer(
            carrier, peer, opened_here=carriers.dialled, watcher=signs, backlog=self._backlog, arrived=arrived
        )
        signs.watch(multiplexer)
        entry = multiplexer, signs
        carriers.present.append(entry)
        try:
            await multiplexer.run()
        except ProtocolError as error:
            self._offend(peer, error.message)
        finally:
            carriers.present.remove(entry)
            signs.close()
