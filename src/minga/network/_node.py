"""A node: all connections of one peer, and the methods that others may call on it.

Theory of operation. Every stream begins with a `Call` naming a method; what follows is that method's own business.
A fresh connection first exchanges `Hello`s on a stream of its own: wire versions (the highest common one is used),
run id, role and date, so that strangers, other runs and incompatible versions are told so in words and sent away.
Either side of a connection may open streams, so a peer that cannot be dialled serves others once it has dialled.

Peers that break the protocol are counted; after `MAX_OFFENCES` within `OFFENCE_MEMORY_S` they are cut off for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from minga.core._errors import (
    ClosedError,
    LocalError,
    MingaError,
    ProtocolError,
    RejectedError,
    RemoteError,
    UnreachableError,
)
from minga.core._events import EventBus
from minga.network._interface import Address, Connection, LinkFacts, Network, PeerId
from minga.network._messages import MessageStream
from minga.network._pulse import Clockwork

WIRE_VERSIONS = (1, 1)
"""Oldest and newest wire version that this code speaks."""

MAX_OFFENCES = 8
OFFENCE_MEMORY_S = 60.0
MAX_STREAMS_PER_PEER = 256
REFUSAL_S = 5.0
"""Seconds that a refused caller has to take note of it."""
DIAL_TIMEOUT_S = 10.0
"""Seconds after which a dial counts as failed: hole punching over a relay takes up to a few seconds."""

Role = Literal["trainer", "client", "auxiliary", "monitor"]
Handler = Callable[[PeerId, MessageStream], Awaitable[None]]
T = TypeVar("T")

logger = logging.getLogger("minga.network")


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """First message of each side of a connection. `wall_time` is in Unix seconds by the sender's clock."""

    versions: tuple[int, int]
    run_id: str
    role: Role
    wall_time: Annotated[float, msgspec.Meta(ge=0.0, le=1e11)]


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """First message of every later stream."""

    method: str


class Node:
    """One peer's connections. `lookup` finds the address of a peer that is not connected; None if unknown."""

    def __init__(
        self,
        network: Network,
        *,
        run_id: str,
        role: Role,
        lookup: Callable[[PeerId], Address | None],
        events: EventBus,
    ) -> None:
        self.network, self.run_id, self.role, self.events = network, run_id, role, events
        self.clockwork = Clockwork()
        self.is_dialable = network.address.dialable
        """Whether others can dial this peer, as far as it knows; its address is empty otherwise."""
        self.clock_offsets_s: dict[PeerId, float] = {}
        """Other peers' clocks minus ours, in seconds, as seen when connecting."""
        self._lookup = lookup
        self._handlers: dict[str, Handler] = {}
        self._connections: dict[PeerId, list[Connection]] = {}
        self._dialling: dict[PeerId, asyncio.Task[Connection]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._past_traffic = (0, 0)
        self._offences: dict[PeerId, deque[float]] = {}
        self._streams: dict[PeerId, int] = {}
        self._closed = False

    @property
    def peer_id(self) -> PeerId:
        """This peer's own id."""
        return self.network.peer_id

    @property
    def address(self) -> Address:
        """What to tell others about where this peer can be dialled."""
        return self.network.address if self.is_dialable else Address(self.peer_id)

    def start(self) -> None:
        """Begin to accept connections on the running loop."""
        self.clockwork.start()
        self.spawn(self._accept_forever())

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task for as long as the node lives; its errors are logged, remote ones quietly."""
        task = asyncio.get_running_loop().create_task(self._guard(coroutine))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: coroutine.close())  # one that was cancelled before its first turn
        return task

    def serve(self, method: str, handler: Handler) -> None:
        """Let others call `method`: `handler(peer, stream)` reads the request and answers.

        A `RejectedError` raised by the handler is sent to the caller as a refusal.
        """
        self._handlers[method] = handler

    # ---- calling others

    @contextlib.asynccontextmanager
    async def open(self, peer: PeerId, method: str) -> AsyncIterator[MessageStream]:
        """Open a stream to `peer` for `method`, dialling if need be; it is aborted when the block is left early.

        Raises `UnreachableError` if there is no way to the peer.
        """
        connection = await self.connection(peer)
        stream = await self._message_stream(connection)
        try:
            await stream.send(Call(method))
            yield stream
        except ProtocolError as error:
            self.offend(peer, str(error))
            raise
        finally:
            await stream.close()

    async def call(self, peer: PeerId, method: str, request: msgspec.Struct, reply_type: type[T]) -> T:
        """Send one request and return the reply.

        Raises `RejectedError` if the peer refuses, and the errors of `MessageStream`.
        """
        async with self.open(peer, method) as stream:
            await stream.send(request)
            reply = await stream.receive(reply_type)
            await stream.finish()
            await stream.receive_end()
            return reply

    async def connection(self, peer: PeerId) -> Connection:
        """A live connection to `peer`, an existing one or a new one. Raises `UnreachableError`."""
        if self._closed:
            raise ClosedError("this peer was closed")
        if live := self._live(peer):
            return live
        address = self._lookup(peer)
        if address is None or not address.dialable:
            raise UnreachableError("not connected, and no address to dial is known", peer=peer)
        return await self.dial(address)

    async def dial(self, address: Address) -> Connection:
        """Connect to a known address and exchange hellos; concurrent calls share one attempt.

        Raises `UnreachableError`, or `RejectedError` if the other side sends this peer away.
        """
        peer = address.peer_id
        if peer not in self._dialling:
            task = asyncio.get_running_loop().create_task(self._dial(address))
            self._dialling[peer] = task
            task.add_done_callback(lambda task: self._dialled(peer, task))
        return await asyncio.shield(self._dialling[peer])

    def _dialled(self, peer: PeerId, task: asyncio.Task[Connection]) -> None:
        self._dialling.pop(peer, None)
        if not task.cancelled():
            task.exception()  # whoever waited for it may have gone away by now

    # ---- what is known of others

    def is_connected(self, peer: PeerId) -> bool:
        """Whether a connection to `peer` is open right now."""
        return self._live(peer) is not None

    def connected(self) -> list[PeerId]:
        """All peers with an open connection, in order of their ids."""
        return sorted(peer for peer in list(self._connections) if self._live(peer))

    def facts(self, peer: PeerId) -> LinkFacts | None:
        """Facts about the link to `peer`, or None without a connection."""
        live = self._live(peer)
        return live.facts() if live else None

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received over all connections so far, closed ones included."""
        live = [c.facts() for connections in self._connections.values() for c in connections]
        sent, received = self._past_traffic
        return sent + sum(f.bytes_sent for f in live), received + sum(f.bytes_received for f in live)

    def offend(self, peer: PeerId, what: str) -> None:
        """Count a breach of the protocol by `peer`; cut it off when there were too many."""
        now = asyncio.get_running_loop().time()
        offences = self._offences.setdefault(peer, deque(maxlen=MAX_OFFENCES))
        offences.append(now)
        self.events.emit("peer.offence", peer=peer, what=what)
        if self._is_cut_off(peer):
            self.events.emit("peer.cut_off", peer=peer, seconds=OFFENCE_MEMORY_S)
            self.spawn(self.disconnect(peer))

    async def disconnect(self, peer: PeerId) -> None:
        """Close all connections to `peer`."""
        for connection in self._connections.pop(peer, []):
            self._note_traffic(connection)
            await connection.close()

    async def close(self) -> None:
        """Stop everything and close the network; may be called twice."""
        self._closed = True
        await self.clockwork.close()
        for task in [*self._tasks, *self._dialling.values()]:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._dialling.values(), return_exceptions=True)
        for peer in list(self._connections):
            await self.disconnect(peer)
        await self.network.close()

    # ---- inner workings

    def _live(self, peer: PeerId) -> Connection | None:
        known = self._connections.get(peer, [])
        for closed in [connection for connection in known if connection.is_closed]:
            known.remove(closed)
            self._note_traffic(closed)
        if known:
            return known[0]
        self._connections.pop(peer, None)
        return None

    def _note_traffic(self, connection: Connection) -> None:
        facts, (sent, received) = connection.facts(), self._past_traffic
        self._past_traffic = (sent + facts.bytes_sent, received + facts.bytes_received)

    def _is_cut_off(self, peer: PeerId) -> bool:
        offences = self._offences.get(peer)
        now = asyncio.get_running_loop().time()
        return offences is not None and len(offences) == MAX_OFFENCES and now - offences[0] < OFFENCE_MEMORY_S

    def _hello(self) -> Hello:
        return Hello(WIRE_VERSIONS, self.run_id, self.role, self.network.wall_time())

    def _check_hello(self, hello: Hello, peer: PeerId) -> None:
        if min(hello.versions[1], WIRE_VERSIONS[1]) < max(hello.versions[0], WIRE_VERSIONS[0]):
            raise RejectedError(
                f"wire versions {hello.versions[0]}-{hello.versions[1]} there and "
                f"{WIRE_VERSIONS[0]}-{WIRE_VERSIONS[1]} here have none in common; update minga on the older side",
                code="version",
                peer=peer,
            )
        if hello.run_id != self.run_id:
            raise RejectedError("that peer is in another run", code="run", peer=peer)
        if self._is_cut_off(peer):
            raise RejectedError("cut off after repeated breaches of the protocol", code="cut_off", peer=peer)
        self.clock_offsets_s[peer] = hello.wall_time - self.network.wall_time()

    async def _message_stream(self, connection: Connection) -> MessageStream:
        return MessageStream(
            await connection.open_stream(),
            connection.peer_id,
            self.clockwork,
            lambda: connection.facts().round_trip_s,
        )

    async def _dial(self, address: Address) -> Connection:
        connection: Connection | None = None
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S) as limit:
                connection = await self.network.connect(address)
                limit.reschedule(asyncio.get_running_loop().time() + DIAL_TIMEOUT_S)  # as much for the hellos
                stream = await self._message_stream(connection)
                try:
                    await stream.send(self._hello())
                    self._check_hello(await stream.receive(Hello), connection.peer_id)
                    await stream.finish()
                finally:
                    stream.release()
        except BaseException as error:
            if connection is not None:
                await connection.close()
            if isinstance(error, TimeoutError):
                message = f"no answer within {DIAL_TIMEOUT_S:.0f} s"
                raise UnreachableError(message, peer=address.peer_id) from error
            raise
        self._adopt(connection)
        return connection

    def _adopt(self, connection: Connection) -> None:
        self._connections.setdefault(connection.peer_id, []).append(connection)
        self.events.emit("peer.connected", peer=connection.peer_id, path=connection.facts().path)
        self.spawn(self._serve_connection(connection))

    async def _accept_forever(self) -> None:
        while True:
            connection = await self.network.accept()
            self.spawn(self._welcome(connection))

    async def _welcome(self, connection: Connection) -> None:
        peer = connection.peer_id
        try:
            async with asyncio.timeout(DIAL_TIMEOUT_S):
                raw = await connection.accept_stream()
                stream = MessageStream(raw, peer, self.clockwork, lambda: connection.facts().round_trip_s)
                try:
                    try:
                        self._check_hello(await stream.receive(Hello), peer)
                    except RejectedError as error:
                        await stream.refuse(error.code, error.message)
                        await stream.receive_end()
                        raise
                    await stream.send(self._hello())
                    await stream.finish()
                finally:
                    stream.release()
        except (RemoteError, TimeoutError) as error:
            self.events.emit("peer.turned_away", peer=peer, reason=str(error) or "no hello")
            await connection.close()
            return
        self._adopt(connection)

    async def _serve_connection(self, connection: Connection) -> None:
        peer = connection.peer_id
        try:
            while True:
                stream = await connection.accept_stream()
                if self._streams.get(peer, 0) >= MAX_STREAMS_PER_PEER:
                    self.offend(peer, "too many streams at once")
                    await stream.reset()
                    continue
                self._streams[peer] = self._streams.get(peer, 0) + 1
                facts = connection.facts
                self.spawn(
                    self._serve_stream(
                        MessageStream(stream, peer, self.clockwork, lambda facts=facts: facts().round_trip_s)  # type: ignore[misc]
                    )
                )
        except UnreachableError:
            pass
        finally:
            await connection.close()
            if self._live(peer) is None:
                self.events.emit("peer.disconnected", peer=peer)

    async def _serve_stream(self, stream: MessageStream) -> None:
        try:
            call = await stream.receive(Call)
            handler = self._handlers.get(call.method)
            if handler is None:
                raise RejectedError(f"no such method: {call.method[:40]}", code="method")
            await handler(stream.peer, stream)
            await stream.finish()
            await stream.receive_end()
        except RejectedError as error:
            with contextlib.suppress(RemoteError, TimeoutError):
                await stream.refuse(error.code, error.message)
                async with asyncio.timeout(REFUSAL_S):
                    await stream.drain()
        except ProtocolError as error:
            self.offend(stream.peer, str(error))
        finally:
            self._streams[stream.peer] -= 1
            if not self._streams[stream.peer]:
                del self._streams[stream.peer]
            await stream.close()

    async def _guard(self, coroutine: Coroutine[Any, Any, None]) -> None:
        try:
            await coroutine
        except (RemoteError, ClosedError) as error:
            logger.debug("task ended: %s", error)
        except (LocalError, MingaError):
            raise
        except Exception:
            logger.exception("a background task failed")
