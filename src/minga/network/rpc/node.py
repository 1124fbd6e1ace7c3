"""A node: all connections of one peer, and the methods that others may call on it.

Theory of operation. Connections begin with an exchange of hellos, streams with the name of a method, see
`minga.network.rpc.handshake`; that method defines the rest. Either side of a connection may open streams, so a peer
that cannot be dialled serves others once it has dialled.

Nothing here grows with the number of strangers: connections are limited in all and for each peer
(`minga.network.rpc.connections`), and so are those without a hello (`minga.network.rpc.accept_loop`) and the bytes that
wait to be read (`minga.network.backlog`). Peers that break the protocol are cut off for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from minga.core.aio.ending import end
from minga.core.aio.observers import Observers
from minga.core.errors import (
    ClosedError,
    MingaError,
    ProtocolError,
    RejectedError,
    RemoteError,
    SilentError,
    UnreachableError,
)
from minga.core.events.bus import EventBus
from minga.core.events.network import PeerConnected, PeerCutOff, PeerDisconnected, PeerOffence
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import any_thread, loop_bound
from minga.network.authorizer import Authorizer, OpenAuthorizer
from minga.network.backlog import Backlog
from minga.network.bandwidth.access_link import AccessLink
from minga.network.bounded_dict import BoundedDict
from minga.network.interface import Address, Connection, LinkFacts, Network, PeerId, Stream
from minga.network.rpc import handshake
from minga.network.rpc.accept_loop import AcceptLoop
from minga.network.rpc.carriers import Carriers
from minga.network.rpc.connections import MAX_PEERS, Connections
from minga.network.rpc.framing import MessageStream
from minga.network.rpc.handshake import WIRE_VERSIONS, Call, Hello, Role
from minga.network.rpc.keepalive import CarrierSigns, KeepaliveTicker, LastHeard
from minga.network.rpc.misbehaviour import OFFENCE_MEMORY_S, MisbehaviourScore
from minga.network.rpc.server import Handler, Server

DIAL_TIMEOUT_S = 10.0
"""Seconds after which a dial counts as failed: hole punching over a relay takes up to a few seconds."""

BRIEF_DIAL_S = 2.0
"""Seconds for the dial of a peer whose process ended lately: as many as its silence would take."""

CALL_TIMEOUT_S = 30.0
"""Seconds for which a call waits for its answer by default, from a peer that sends keepalives."""

T = TypeVar("T")

logger = logging.getLogger("minga.network")


@loop_bound
class Node:
    """One peer's connections. `lookup` finds the address of a peer that is not connected; None if unknown.
    `access_link` holds the measured rates and the caps of this peer's link. `authorizer` says which peers are admitted
    (default: all).
    """

    def __init__(
        self,
        network: Network,
        *,
        run_id: str,
        role: Role,
        lookup: Callable[[PeerId], Address | None],
        events: EventBus,
        access_link: AccessLink | None = None,
        authorizer: Authorizer | None = None,
    ) -> None:
        self.network, self.run_id, self.role, self.events = network, run_id, role, events
        self.on_connected, self.on_disconnected = Observers[[PeerId]](), Observers[[PeerId]]()
        """Called for each new connection, and for each peer to which the last connection is gone."""
        self.clockwork = KeepaliveTicker()
        self.access_link = access_link or AccessLink(asyncio.get_running_loop().time, network.wall_time)
        self.is_dialable = network.address.dialable  # as far as it knows; its address is empty otherwise
        self.clock_offsets_s: BoundedDict[PeerId, float] = BoundedDict(MAX_PEERS)
        """Other peers' clocks minus ours, in seconds, as seen when connecting."""
        self._last_heard: BoundedDict[PeerId, LastHeard] = BoundedDict(MAX_PEERS)
        self._lookup, self._authorizer = lookup, authorizer or OpenAuthorizer()
        self._introduced: BoundedDict[PeerId, Address] = BoundedDict(MAX_PEERS)
        self.backlog = Backlog()
        self.backlog.on_overflow.add(lambda peer: self.offend(peer, "it let more wait to be read than anybody else"))
        self._carriers = Carriers(
            self.clockwork, self.backlog, self._wrap_quiet, self._serve_on_carrier, self.spawn, self.offend
        )
        permits = self._authorizer.permits
        self._server = Server(self._wrap_quiet, self.spawn, self.offend, permits, self._carriers.take)
        self._accept_loop = AcceptLoop(network, events, self._greet, self._adopt, self.spawn)
        self._connections, self._misbehaviour = Connections(), MisbehaviourScore()
        self._dialling: dict[PeerId, asyncio.Task[Connection]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    @any_thread
    def peer_id(self) -> PeerId:
        """This peer's own id."""
        return self.network.peer_id

    @property
    def address(self) -> Address:
        """The address at which others can dial this peer."""
        return self.network.address if self.is_dialable else Address(self.peer_id)

    def start(self) -> None:
        """Begin to accept connections on the running loop."""
        self.clockwork.start()
        self.spawn(self._accept_loop.run())

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task for as long as the node lives; its errors are logged, remote ones quietly."""
        task = asyncio.get_running_loop().create_task(self._guard(coroutine))
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._ended, coroutine))
        return task

    def _ended(self, coroutine: Coroutine[Any, Any, None], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        coroutine.close()  # it may have been cancelled before its first turn

    def serve(self, method: str, handler: Handler) -> None:
        """Let others call `method`: `handler(peer, stream)` reads the request and answers.

        A `RejectedError` raised by the handler is sent to the caller as a refusal.
        """
        self._server.handlers[method] = handler

    # ---- calling others

    @contextlib.asynccontextmanager
    async def open(self, peer: PeerId, method: str, *, bulk: bool = False) -> AsyncIterator[MessageStream]:
        """Open a stream to `peer` for `method`, dialling if need be; it is aborted when the block is left early.

        `bulk` is for streams that carry tensors, see `Connection.open_stream`; others share the connection's carrier.
        Raises `UnreachableError` if there is no way to the peer.
        """
        connection = await self.connection(peer)
        shared = None if bulk else self._carriers.open(connection)
        inner, signs = shared or (await connection.open_stream(bulk=bulk), None)
        stream = self._wrap(inner, connection, signs)
        try:
            with self.blaming(peer):
                stream.announce(Call(method))
                yield stream
        finally:
            await stream.close()

    async def call(
        self,
        peer: PeerId,
        method: str,
        request: msgspec.Struct,
        reply_type: type[T],
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> T:
        """Send one request and return the reply.

        Raises `RejectedError` if the peer refuses, `SilentError` if `timeout_s` seconds, in which this process was
        awake, bring no answer, and the errors of `MessageStream`.
        """
        try:
            async with self.clockwork.timeout(timeout_s), self.open(peer, method) as stream:
                await stream.send(request)
                await stream.finish()
                reply = await stream.receive(reply_type)
                await stream.receive_end()
                return reply
        except TimeoutError as error:
            raise SilentError(f"no answer to {method!r} within {timeout_s:g} s", peer=peer) from error

    async def connection(self, peer: PeerId) -> Connection:
        """A live connection to `peer`, an existing one or a new one. Raises `UnreachableError`."""
        if self._closed:
            raise ClosedError("this peer was closed")
        if live := self._connections.live(peer):
            return live
        address = self._lookup(peer)
        if address is None or not address.dialable:
            address = self._introduced.get(peer)
        if address is None or not address.dialable:
            raise UnreachableError("not connected, and no address to dial is known", peer=peer)
        return await self.dial(address)

    def introduce(self, addresses: Iterable[Address]) -> None:
        """Another peer says where these can be dialled, which counts where `lookup` does not know it. A wrong address
        does no harm but that nobody answers there: a connection shows whose it is.
        """
        for address in addresses:
            self._introduced[address.peer_id] = address

    async def dial(self, address: Address) -> Connection:
        """Connect to a known address and exchange hellos; concurrent calls share one attempt.

        Raises `UnreachableError`, or `RejectedError` if the other side sends this peer away.
        """
        peer = address.peer_id
        if self._connections.has_just_ended(peer):
            raise UnreachableError("its process has ended", peer=peer)
        if peer not in self._dialling:
            task = asyncio.get_running_loop().create_task(self._dial(address))
            self._dialling[peer] = task
            task.add_done_callback(lambda task: self._dialled(peer, task))
        return await asyncio.shield(self._dialling[peer])

    def _dialled(self, peer: PeerId, task: asyncio.Task[Connection]) -> None:
        self._dialling.pop(peer, None)
        if not task.cancelled():
            task.exception()  # the caller that waited for it may have gone away by now

    # ---- what is known of others

    def is_connected(self, peer: PeerId) -> bool:
        """Whether a connection to `peer` is open right now."""
        return self._connections.live(peer) is not None

    def has_just_ended(self, peer: PeerId) -> bool:
        """Whether the process of `peer` ended a moment ago, as far as the network noticed: it is not waited for."""
        return self._connections.has_just_ended(peer)

    @property
    def has_room(self) -> bool:
        """Whether there are few enough connections to make one that is not needed."""
        return len(self._connections) < MAX_PEERS // 2

    def connected(self) -> list[PeerId]:
        """All peers with an open connection, in order of their ids."""
        return self._connections.connected()

    def draw_connected(self, count: int, generator: random.Random, fits: Callable[[PeerId], bool]) -> list[PeerId]:
        """Up to `count` different peers at random that `fits` and to which a connection is open."""
        names, drawn = list(self._connections.candidates()), list[PeerId]()
        while names and len(drawn) < count:
            place = generator.randrange(len(names))
            names[place], names[-1] = names[-1], names[place]
            if self.is_connected(peer := names.pop()) and fits(peer):
                drawn.append(peer)
        return drawn

    def facts(self, peer: PeerId) -> LinkFacts | None:
        """Facts about the link to `peer`, or None without a connection."""
        live = self._connections.live(peer)
        return live.facts() if live else None

    def round_trip_s(self, peer: PeerId) -> float | None:
        """Round-trip time to `peer` in seconds, which costs less than all facts; None if unknown."""
        live = self._connections.live(peer)
        return live.round_trip_s if live else None

    def seen_at(self, peer: PeerId) -> str | None:
        """The `ip:port` at which `peer` is seen from here; None over a relay or without a connection."""
        live = self._connections.live(peer)
        return live.seen_at if live else None

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received over all connections so far, closed ones included."""
        return self._connections.traffic()

    @contextlib.contextmanager
    def blaming(self, peer: PeerId) -> Iterator[None]:
        """Count a `ProtocolError` of the block, in which what came from `peer` is looked at, as its offence."""
        try:
            yield
        except ProtocolError as error:
            self.offend(peer, str(error))
            raise

    def offend(self, peer: PeerId, what: str) -> None:
        """Count a breach of the protocol by `peer`; cut it off when there were too many."""
        now = asyncio.get_running_loop().time()
        self._misbehaviour.note(peer, now)
        self.events.emit(PeerOffence(peer=peer, what=what))
        if self._misbehaviour.is_cut_off(peer, now):
            self.events.emit(PeerCutOff(peer=peer, seconds=OFFENCE_MEMORY_S))
            self.spawn(self.disconnect(peer))

    async def disconnect(self, peer: PeerId) -> None:
        """Close all connections to `peer`."""
        for connection in self._connections.remove(peer):
            await connection.close()

    async def close(self) -> None:
        """Stop everything and close the network; may be called twice."""
        self._closed = True
        self.clockwork.close()
        await end(*self._tasks, *self._dialling.values())
        for peer in self._connections.peers():
            await self.disconnect(peer)
        await self.network.close()

    # ---- inner workings

    def _hello(self) -> Hello:
        credential = self._authorizer.credential()
        return Hello(WIRE_VERSIONS, self.run_id, self.role, self.network.wall_time(), credential, multiplexes=True)

    def _check_hello(self, hello: Hello, peer: PeerId) -> None:
        handshake.check_hello(hello, self.run_id, peer)
        if self._misbehaviour.is_cut_off(peer, asyncio.get_running_loop().time()):
            raise RejectedError("cut off after repeated breaches of the protocol", code=RefusalCode.CUT_OFF, peer=peer)
        self._authorizer.meet(peer, hello.credential)

    def _check_guest(self, hello: Hello, peer: PeerId) -> None:
        self._check_hello(hello, peer)
        if self._connections.is_full_for(peer):
            raise RejectedError("too many peers are connected already", code=RefusalCode.FULL, peer=peer)

    def _wrap(
        self, stream: Stream, connection: Connection, carrier: CarrierSigns | None = None, *, pulses: bool = True
    ) -> MessageStream:
        peer, link = connection.peer_id, self.access_link
        last_heard, round_trip_s = self._heard_of(peer), lambda: connection.round_trip_s
        return MessageStream(
            stream, peer, self.clockwork, round_trip_s, link, last_heard, carrier, self.backlog, pulses=pulses
        )

    def _wrap_quiet(self, stream: Stream, connection: Connection, carrier: CarrierSigns | None = None) -> MessageStream:
        """The message stream of one that may be for another protocol."""
        return self._wrap(stream, connection, carrier, pulses=False)

    def _serve_on_carrier(self, stream: Stream, connection: Connection, carrier: CarrierSigns) -> None:
        self._server.take(stream, connection, carrier)

    def _heard_of(self, peer: PeerId) -> LastHeard:
        if (last_heard := self._last_heard.get(peer)) is None:
            last_heard = self._last_heard[peer] = LastHeard()
        return last_heard

    async def _dial(self, address: Address) -> Connection:
        peer = address.peer_id
        connection: Connection | None = None
        try:
            brief = self._connections.has_lately_ended(peer)
            async with asyncio.timeout(BRIEF_DIAL_S if brief else DIAL_TIMEOUT_S) as limit:
                connection = await self.network.connect(address)
                limit.reschedule(asyncio.get_running_loop().time() + DIAL_TIMEOUT_S)  # as much for the hellos
                stream = self._wrap(await connection.open_stream(), connection)
                hello = await handshake.introduce(stream, self._hello(), lambda hello: self._check_hello(hello, peer))
        except BaseException as error:
            if connection is not None:
                await connection.close()
            if isinstance(error, TimeoutError):
                raise UnreachableError("no answer to the dial in time", peer=peer) from error
            raise
        self._adopt(connection, hello, dialled=True)
        return connection

    def _adopt(self, connection: Connection, hello: Hello, *, dialled: bool = False) -> None:
        peer = connection.peer_id
        if hello.multiplexes:
            self._carriers.begin(connection, self._heard_of(peer), dialled=dialled)
        self.clock_offsets_s[peer] = hello.wall_time - self.network.wall_time()
        replaced = self._connections.add(connection)
        if replaced is not None:
            self.spawn(replaced.close())
        self.events.emit(PeerConnected(peer=peer, path=connection.facts().path))
        self.spawn(self._serve(connection))
        self.on_connected.tell(peer)

    async def _greet(self, connection: Connection) -> Hello:
        stream = self._wrap(await connection.accept_stream(), connection)
        return await handshake.welcome(stream, self._hello, lambda hello: self._check_guest(hello, connection.peer_id))

    async def _serve(self, connection: Connection) -> None:
        try:
            await self._server.serve_connection(connection)
        finally:
            self._carriers.end(connection)
            await connection.close()
            if self._connections.live(connection.peer_id) is None:
                self.events.emit(PeerDisconnected(peer=connection.peer_id))
                self.on_disconnected.tell(connection.peer_id)

    async def _guard(self, coroutine: Coroutine[Any, Any, None]) -> None:
        try:
            await coroutine
        except (RemoteError, ClosedError) as error:
            logger.debug("task ended: %s", error)
        except MingaError:
            raise
        except Exception:
            logger.exception("a background task failed")
