"""A node: all connections of one peer, and the methods that others may call on it.

Theory of operation. Connections begin with an exchange of hellos, streams with the name of a method, see
`minga.network.rpc.handshake`; that method defines the rest. Either side of a connection may open streams, so a peer
that cannot be dialled serves others once it has dialled.

One key is one process, the one that began first. A peer that is connected to a process and meets a younger one with
the same key asks the older whether it lives. If it does the younger is refused, and gets the answer as a proof; else
what is left of the older is closed, as after a kill. An older one takes the place of a younger, which gets such a proof
as well. Two that enter at different peers find each other by gossip, see `minga.network.gossip.board`. A newcomer,
which does not know the run's time, counts as the youngest.

Small messages share a *carrier*, a long-lived stream: to open a stream costs more than all that a small message needs,
some eighty foreign calls at both ends. The first is the one on which the hellos were said. Where the network knows a
better way for much traffic, over TCP, the side that dialled opens another one there as soon as it can: a message costs
a seventh of what it costs over iroh. A carrier that is lost takes the streams on it along, as a reset does; the dialler
opens another one. While there is none, streams are opened on the connection itself. Either side gives up what was
replaced: the other one may have lost it without a word that arrived.

Nothing here grows with the number of strangers. Connections are limited in all and for each peer
(`minga.network.rpc.connections`), and so are the bytes that wait to be read (`minga.network.backlog`). A connection is
kept once its handshake is complete; until then `MAX_WAITING` may wait, each for `HELLO_TIMEOUT_S`, and for `ORDERS_S`
if it is refused for want of orders. When there are more, the one that has waited longest makes room, since an honest
peer says hello within a round trip. Peers that break the protocol are cut off for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from minga.core.aio import Backoff, Observers, end
from minga.core.errors import (
    ClosedError,
    LocalError,
    ProtocolError,
    RejectedError,
    RemoteError,
    SilentError,
    UnreachableError,
)
from minga.core.events.bus import EventBus
from minga.core.events.network import (
    PeerConnected,
    PeerCutOff,
    PeerDisconnected,
    PeerOffence,
    PeerRefused,
    PeerTurnedAway,
)
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import any_thread, loop_bound
from minga.identity.keys.keys import Identity
from minga.network.authorizer import Authorizer, OpenAuthorizer
from minga.network.backlog import Backlog
from minga.network.bandwidth.access_link import AccessLink
from minga.network.bounded_dict import BoundedDict
from minga.network.interface import Address, Connection, LinkFacts, Network, PeerId, Stream
from minga.network.rpc import handshake
from minga.network.rpc.connections import MAX_PEERS, OFFENCE_MEMORY_S, Connections, MisbehaviourScore
from minga.network.rpc.handshake import (
    ALIVE,
    MULTIPLEX,
    NONCE_BYTES,
    RIVAL,
    WIRE_VERSIONS,
    Call,
    Challenge,
    Hello,
    Incarnation,
    ProofOfLife,
    Rival,
    Role,
)
from minga.network.rpc.keepalive import KeepaliveTicker, LastHeard
from minga.network.rpc.multiplexer import Multiplexer, Substream
from minga.network.rpc.run_clock import RunClock
from minga.network.rpc.stream import MessageStream

DIAL_TIMEOUT_S = 10.0
"""Seconds after which a dial counts as failed: hole punching over a relay takes up to a few seconds."""

BRIEF_DIAL_S = 2.0
"""Seconds for the dial of a peer whose process ended lately: as many as its silence would take."""

CALL_TIMEOUT_S = 30.0
"""Seconds for which a call waits for its answer by default, from a peer that sends keepalives."""

ALIVE_S = 5.0
"""Seconds in which a process has to answer that it lives, before another one gets its place; silence on its connection
is noticed sooner."""

HELLO_TIMEOUT_S = 10.0
ORDERS_S = 10.0
"""Seconds for the orders on a connection that is refused; those that admit a peer are the first that are sent."""

MAX_WAITING = 128
"""How many connections may wait for a hello."""

MAX_STREAMS_PER_PEER = 256
REFUSAL_S = 5.0
"""Seconds that a refused caller has to take note of it."""

MAX_UNREACHED = 64
MAX_CARRIERS = 3
"""How many a connection may have at once: the present one, one that is about to end, and one that is not known to."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 60.0
"""Seconds until a carrier that was lost is replaced."""

FIRST_DETOUR_S, LONGEST_DETOUR_S = 10.0, 1920.0
"""Seconds until a way over TCP is looked for again."""

LAST_WORDS_S = 5.0
"""Seconds after which the other side knows that a carrier was replaced, and opens no stream on it any more; and those
for which one without streams is kept, since the end of the last of them may still be on its way.
"""

Handler = Callable[[PeerId, MessageStream], Awaitable[None]]

T = TypeVar("T")

logger = logging.getLogger("minga.network")


@loop_bound
class Node:
    """One peer's connections. `lookup` finds the address of a peer that is not connected; None if unknown.
    `access_link` holds the measured rates and the caps of this peer's link. `authorizer` says which peers are admitted
    (default: all), `clock` what the run's time is (default: this machine's). With the key of `identity` this process
    proves that it lives to others that use a copy of it.
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
        clock: RunClock | None = None,
        identity: Identity | None = None,
    ) -> None:
        self.network, self.run_id, self.role, self.events = network, run_id, role, events
        self.on_connected, self.on_disconnected = Observers[[PeerId]](), Observers[[PeerId]]()
        """Called for each new connection, and for each peer to which the last connection is gone."""
        self.on_rival = Observers[[Incarnation]]()
        """Called when a peer shows that an older process with the same key lives."""
        self.exchange_orders: Callable[[Connection], Awaitable[None]] | None = None
        """Makes the organisers' orders the same at both ends of a connection, where one of them lacks some to judge the
        other: the dialler does so, then it dials once more.
        """
        self._nonce, self._began_s = secrets.token_bytes(NONCE_BYTES), asyncio.get_running_loop().time()
        self._incarnation: Incarnation | None = None
        self.clockwork = KeepaliveTicker()
        self.access_link = access_link or AccessLink(asyncio.get_running_loop().time, network.wall_time)
        self.clock = clock or RunClock.of(network)
        self.is_dialable = network.address.dialable  # as far as it knows; its address is empty otherwise
        self._identity = identity
        self._incarnations: BoundedDict[PeerId, Incarnation | None] = BoundedDict(MAX_PEERS)
        self._refused_by: BoundedDict[PeerId, RefusalCode] = BoundedDict(MAX_PEERS)
        self._last_heard: BoundedDict[PeerId, LastHeard] = BoundedDict(MAX_PEERS)
        self._lookup, self._authorizer = lookup, authorizer or OpenAuthorizer()
        self._introduced: BoundedDict[PeerId, Address] = BoundedDict(MAX_PEERS)
        self._unreached: BoundedDict[PeerId, float] = BoundedDict(MAX_UNREACHED)  # since when, until it is connected
        self.backlog = Backlog()
        self.backlog.on_overflow.add(lambda peer: self.offend(peer, "it let more wait to be read than anybody else"))
        self._carriers: dict[Connection, Carriers] = {}
        self._handlers: dict[str, Handler] = {}
        self._served: dict[PeerId, int] = {}  # how many streams each peer has open here
        self._waiting: dict[Connection, None] = {}  # connections without a hello so far, oldest first
        self._connections, self._misbehaviour = Connections(), MisbehaviourScore()
        self._dialling: dict[Address, asyncio.Task[Connection]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.serve(ALIVE, self._tell_alive)
        self.serve(RIVAL, self._hear_of_rival)

    @property
    @any_thread
    def peer_id(self) -> PeerId:
        """This peer's own id."""
        return self.network.peer_id

    @property
    def address(self) -> Address:
        """The address at which others can dial this peer."""
        return self.network.address if self.is_dialable else Address(self.peer_id)

    @property
    def incarnation(self) -> Incarnation:
        """This process of the peer; it does not change once the run's time is known."""
        if self._incarnation is not None:
            return self._incarnation
        age_s = asyncio.get_running_loop().time() - self._began_s
        own = Incarnation(self.clock.now() - age_s, self._nonce)
        if self.clock.is_settled:
            self._incarnation = own
        return own

    def start(self) -> None:
        """Begin to accept connections on the running loop."""
        self.clockwork.start()
        self.spawn(self._accept())

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
        self._handlers[method] = handler

    # ---- calling others

    @contextlib.asynccontextmanager
    async def open(
        self, peer: PeerId, method: str, *, bulk: bool = False, over: Connection | None = None
    ) -> AsyncIterator[MessageStream]:
        """Open a stream to `peer` for `method`, dialling if need be, or `over` a connection that there is; it is
        aborted when the block is left early.

        `bulk` is for streams that carry tensors, see `Connection.open_stream`; others share the connection's carrier.
        Raises `UnreachableError` if there is no way to the peer.
        """
        connection = over or await self.connection(peer)
        carriers = None if bulk else self._carriers.get(connection)
        shared = carriers.open() if carriers is not None else None
        stream = self.wrap(shared or await connection.open_stream(bulk=bulk), connection)
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
        over: Connection | None = None,
    ) -> T:
        """Send one request and return the reply; for `over` see `open`.

        Raises `RejectedError` if the peer refuses, `SilentError` if `timeout_s` seconds, in which this process was
        awake, bring no answer, and the errors of `MessageStream`.
        """
        try:
            async with self.clockwork.timeout(timeout_s), self.open(peer, method, over=over) as stream:
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
        return self._connections.live(peer) or await self.redial(peer)

    async def redial(self, peer: PeerId) -> Connection:
        """A new connection to `peer`, also beside one that there is. Raises as `dial` does."""
        address = self._lookup(peer)
        if address is None or not address.dialable:
            address = self._introduced.get(peer)
        if address is None or not address.dialable:
            raise UnreachableError("no address to dial is known", peer=peer)
        return await self.dial(address)

    def introduce(self, addresses: Iterable[Address]) -> None:
        """Another peer says where these can be dialled, which counts where `lookup` does not know it. A wrong address
        does no harm but that nobody answers there: a connection shows whose it is.
        """
        for address in addresses:
            self._introduced[address.peer_id] = address

    async def dial(self, address: Address) -> Connection:
        """Connect to a known address and exchange hellos; concurrent calls for the same one share an attempt.

        Raises `UnreachableError`, `RejectedError` if the other side sends this peer away, or `ClosedError`.
        """
        if self._closed:
            raise ClosedError("this peer was closed")
        if self._connections.has_just_ended(address.peer_id):
            raise UnreachableError("its process has ended", peer=address.peer_id)
        if address not in self._dialling:
            task = asyncio.get_running_loop().create_task(self._dial(address))
            self._dialling[address] = task
            task.add_done_callback(lambda task: self._dialled(address, task))
        dialling = self._dialling[address]
        await asyncio.wait({dialling})  # it goes on for others if this caller is cancelled
        if dialling.cancelled():
            raise ClosedError("this peer was closed")
        return dialling.result()

    def _dialled(self, address: Address, task: asyncio.Task[Connection]) -> None:
        self._dialling.pop(address, None)
        # The caller that waited for it may have gone away by now.
        if not task.cancelled() and isinstance(task.exception(), UnreachableError | SilentError):
            peer = address.peer_id
            self._unreached[peer] = self._unreached.get(peer, asyncio.get_running_loop().time())

    # ---- what is known of others

    def is_connected(self, peer: PeerId) -> bool:
        """Whether a connection to `peer` is open right now."""
        return self._connections.live(peer) is not None

    def unreached(self) -> Mapping[PeerId, float]:
        """Peers that were dialled in vain, dead ones among them, and since when, in seconds on the loop's clock; only
        the last `MAX_UNREACHED`.
        """
        return self._unreached

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

    def hear_time(self, peer: PeerId, run_time: float | None, travel_s: float | None = None) -> None:
        """`peer` said `travel_s` ago, by default as long as usual, that it was `run_time`; None: it does not know."""
        if (live := self._connections.live(peer)) is not None:
            ago_s = (live.round_trip_s or 0.0) / 2.0 if travel_s is None else travel_s
            self.clock.meet(peer, None if run_time is None else run_time + ago_s)

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
        credential, clock = self._authorizer.credential(), self.clock
        return Hello(
            WIRE_VERSIONS,
            self.run_id,
            self.role,
            clock.machine_time(),
            credential,
            run_time=clock.known_time(),
            incarnation=self.incarnation,
        )

    def _check_hello(self, hello: Hello, peer: PeerId) -> None:
        handshake.check_hello(hello, self.run_id, peer)
        if self._misbehaviour.is_cut_off(peer, asyncio.get_running_loop().time()):
            raise RejectedError("cut off after repeated breaches of the protocol", code=RefusalCode.CUT_OFF, peer=peer)

    async def _check_host(self, hello: Hello, peer: PeerId, travel_s: float) -> None:
        self._check_hello(hello, peer)
        self.clock.enter_by(peer, None if hello.run_time is None else hello.run_time + travel_s)
        if await self._proof_of_life(peer, hello) is not None:
            raise UnreachableError("a process with a copy of its key answers there", peer=peer)

    async def _check_guest(self, hello: Hello, peer: PeerId) -> None:
        self._check_hello(hello, peer)
        self.clock.check_guest(peer, hello.wall_time, hello.run_time)
        self._authorizer.meet(peer, hello.credential)
        if self._connections.is_full_for(peer):
            raise RejectedError("too many peers are connected already", code=RefusalCode.FULL, peer=peer)
        if (proof := await self._proof_of_life(peer, hello)) is not None:
            known = self._incarnations.get(peer)
            raise handshake.key_in_use(0.0 if known is None else known.since, proof, peer)

    async def _proof_of_life(self, peer: PeerId, hello: Hello) -> bytes | None:
        """What shows that another process with the key of `peer` than that of `hello` is connected and lives, and is
        not younger; None if there is none.
        """
        live, known, newcomer = self._connections.live(peer), self._incarnations.get(peer), hello.incarnation
        if live is None or known is None or newcomer is None or known.nonce == newcomer.nonce:
            return None
        if hello.run_time is not None and newcomer < known:
            return None
        try:
            return await self._ask_for_life(live, newcomer)
        except RemoteError:
            return None

    async def _ask_for_life(self, connection: Connection, rival: Incarnation) -> bytes:
        peer, challenge = connection.peer_id, Challenge(rival.nonce)
        try:
            alive = await self.call(peer, ALIVE, challenge, ProofOfLife, timeout_s=ALIVE_S, over=connection)
        except RejectedError:
            return b""  # also an answer
        return msgspec.msgpack.encode(alive)

    async def _tell_alive(self, peer: PeerId, stream: MessageStream) -> None:  # noqa: ARG002
        challenge = await stream.receive(Challenge)
        await stream.send(ProofOfLife.signed(self._identity, self.run_id, self.incarnation, challenge))

    async def _replace(self, others: list[Connection], incarnation: Incarnation, connection: Connection) -> None:
        """Close connections to a process whose place another one takes over `connection`; if it lives it is told."""
        try:
            proof = await self._ask_for_life(connection, incarnation) if others else b""
            for other in others:
                async with self.clockwork.timeout(ALIVE_S), self.open(other.peer_id, RIVAL, over=other) as stream:
                    await stream.send(Rival(proof))
                    await stream.finish()
                    await stream.receive_end()
        except (RemoteError, TimeoutError) as error:
            logger.debug("nothing is left of a process of %s: %s", connection.peer_id[:10], error)
        finally:
            for other in others:
                await other.close()

    async def _hear_of_rival(self, peer: PeerId, stream: MessageStream) -> None:  # noqa: ARG002
        self._hear_proof((await stream.receive(Rival)).proof)

    def _hear_proof(self, proof: bytes) -> None:
        rival = ProofOfLife.proven(proof, self.peer_id, self.run_id, self._nonce)
        if rival is not None and (not self.clock.is_settled or rival < self.incarnation):
            self.on_rival.tell(rival)

    def wrap(self, stream: Stream, connection: Connection, *, pulses: bool = True) -> MessageStream:
        """The message stream of a stream of a connection, or of its carrier."""
        peer = connection.peer_id
        return MessageStream(
            stream,
            peer,
            self.clockwork,
            lambda: connection.round_trip_s,
            self.access_link,
            self.heard_of(peer),
            self.backlog,
            pulses=pulses,
        )

    def heard_of(self, peer: PeerId) -> LastHeard:
        """What all streams with a peer know of its signs of life."""
        if (last_heard := self._last_heard.get(peer)) is None:
            last_heard = self._last_heard[peer] = LastHeard()
        return last_heard

    async def _dial(self, address: Address, *, exchanges: bool = True) -> Connection:
        """Connect and say hello. If one side lacks orders to judge the other it `exchanges` them, and dials again."""
        peer = address.peer_id
        brief = self._connections.has_lately_ended(peer)
        async with _in_time(peer, BRIEF_DIAL_S if brief else DIAL_TIMEOUT_S):
            connection = await self.network.connect(address)
        is_kept = False
        try:
            is_kept = await self._say_hello(connection, exchanges=exchanges)
        finally:
            if not is_kept:
                await connection.close()
        return connection if is_kept else await self._dial(address, exchanges=False)

    async def _say_hello(self, connection: Connection, *, exchanges: bool) -> bool:
        """False if one side lacked orders to judge the other: they were exchanged then, as far as time allowed."""
        peer, now = connection.peer_id, asyncio.get_running_loop().time
        async with _in_time(peer, DIAL_TIMEOUT_S):
            stream = self.wrap(await connection.open_stream(), connection, pulses=False)
            own, sent_s = self._hello(), now()
            try:
                hello = await handshake.introduce(
                    stream, own, lambda hello: self._check_host(hello, peer, (now() - sent_s) / 2.0)
                )
                self._adopt(connection, stream, hello, (now() - sent_s) / 2.0, dialled=True)
                return True
            except RejectedError as error:
                self._note_refusal(error, peer)
                if not exchanges or error.code is not RefusalCode.ORDERS or self.exchange_orders is None:
                    raise
                await stream.close()
        with contextlib.suppress(RemoteError, TimeoutError):
            async with asyncio.timeout(ORDERS_S):
                await self.exchange_orders(connection)
        return False

    def _note_refusal(self, error: RejectedError, peer: PeerId) -> None:
        """A peer may say what it likes of this one's clock and key: only of the key there is a proof."""
        if error.code in (RefusalCode.CLOCK, RefusalCode.KEY) and self._refused_by.get(peer) is not error.code:
            self._refused_by[peer] = error.code
            self.events.emit(PeerRefused(peer=peer, reason=error.message))
        if error.code is RefusalCode.KEY:
            self._hear_proof(error.proof)

    def _adopt(
        self,
        connection: Connection,
        stream: MessageStream,
        hello: Hello,
        travel_s: float | None = None,
        *,
        dialled: bool = False,
    ) -> None:
        """Keep a connection. Raises `RejectedError` if its peer is not admitted, or no longer: the hellos took time."""
        peer = connection.peer_id
        self._authorizer.meet(peer, hello.credential)
        self._carriers[connection] = Carriers(self, connection, stream.hand_over(), dialled=dialled)
        known, incarnation = self._incarnations.get(peer), hello.incarnation
        if incarnation is not None and hello.run_time is None:
            since = max(0.0, incarnation.since + self.clock.now() - hello.wall_time)
            incarnation = Incarnation(since, incarnation.nonce)
        self._incarnations[peer] = incarnation
        if known is not None and incarnation is not None and known.nonce != incarnation.nonce:
            self.spawn(self._replace(self._connections.remove(peer), known, connection))
        replaced = self._connections.add(connection)
        self.hear_time(peer, hello.run_time, travel_s)
        if replaced is not None:
            self.spawn(replaced.close())
        self._unreached.pop(peer, None)
        self.events.emit(PeerConnected(peer=peer, path=connection.facts().path))
        self.spawn(self._serve(connection))
        self.on_connected.tell(peer)

    # ---- being dialled

    async def _accept(self) -> None:
        """Accept connections until the network is closed."""
        while True:
            connection = await self.network.accept()
            if len(self._waiting) >= MAX_WAITING:
                oldest = next(iter(self._waiting))
                del self._waiting[oldest]
                self.spawn(oldest.close())  # which ends its greeting
            self._waiting[connection] = None
            self.spawn(self._welcome(connection))

    async def _welcome(self, connection: Connection) -> None:
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                peer, stream = connection.peer_id, self.wrap(await connection.accept_stream(), connection)
                hello = await handshake.welcome(stream, self._hello, lambda hello: self._check_guest(hello, peer))
            self._adopt(connection, stream, hello)
        except (RemoteError, TimeoutError) as error:
            self.events.emit(PeerTurnedAway(peer=connection.peer_id, reason=str(error) or "no hello"))
            if isinstance(error, RejectedError) and error.code is RefusalCode.ORDERS:
                await self._hear_orders(connection)
            await connection.close()
        finally:
            self._waiting.pop(connection, None)

    async def _hear_orders(self, connection: Connection) -> None:
        """Serve the one stream of a connection that is refused; nothing but orders is permitted on it."""
        with contextlib.suppress(RemoteError, TimeoutError):
            async with asyncio.timeout(ORDERS_S):
                stream = await connection.accept_stream()
                self._count(connection.peer_id, 1)
                await self._serve_stream(self.wrap(stream, connection, pulses=False), connection, is_refused=True)

    # ---- being called

    async def _serve(self, connection: Connection) -> None:
        """Serve every stream that comes over a connection, until it is lost."""
        try:
            with contextlib.suppress(UnreachableError):
                while True:
                    self.take(await connection.accept_stream(), connection)
        finally:
            self._carriers.pop(connection, None)
            await connection.close()
            if self._connections.live(connection.peer_id) is None:
                self.clock.part(connection.peer_id)
                self.events.emit(PeerDisconnected(peer=connection.peer_id))
                self.on_disconnected.tell(connection.peer_id)

    def take(self, stream: Stream, connection: Connection) -> None:
        """Serve a stream that came over a connection, or over its carrier."""
        peer = connection.peer_id
        if self._served.get(peer, 0) >= MAX_STREAMS_PER_PEER:
            self.offend(peer, "too many streams at once")
            self.spawn(stream.reset())
            return
        self._count(peer, 1)
        self.spawn(self._serve_stream(self.wrap(stream, connection, pulses=False), connection))

    async def _serve_stream(self, stream: MessageStream, connection: Connection, *, is_refused: bool = False) -> None:
        try:
            call = await stream.receive(Call)
            if call.method == MULTIPLEX:
                self._count(stream.peer, -1)  # what it carries is counted
                try:
                    await self._take_carrier(stream, connection)
                finally:
                    self._count(stream.peer, 1)
                return
            stream.begin_pulses()
            handler = self._handlers.get(call.method)
            if handler is None:
                raise RejectedError(f"no such method: {call.method[:40]}", code=RefusalCode.METHOD)
            if not self._authorizer.permits(None if is_refused else stream.peer, call.method):
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
            self.offend(stream.peer, str(error))
        finally:
            self._count(stream.peer, -1)
            await stream.close()

    async def _take_carrier(self, stream: MessageStream, connection: Connection) -> None:
        carriers = self._carriers.get(connection)
        if carriers is None:
            raise ProtocolError("it has no carrier to open", peer=connection.peer_id)
        await carriers.take(stream)

    def _count(self, peer: PeerId, more: int) -> None:
        self._served[peer] = self._served.get(peer, 0) + more
        if not self._served[peer]:
            del self._served[peer]

    async def _guard(self, coroutine: Coroutine[Any, Any, None]) -> None:
        try:
            await coroutine
        except (RemoteError, ClosedError) as error:
            logger.debug("task ended: %s", error)
        except LocalError as error:
            logger.error("a background task failed: %s", error)
        except Exception:
            logger.exception("a background task failed")


@contextlib.asynccontextmanager
async def _in_time(peer: PeerId, limit_s: float) -> AsyncIterator[None]:
    """Raises `UnreachableError` after the limit."""
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError as error:
        raise UnreachableError("no answer to the dial in time", peer=peer) from error


class Carriers:
    """The carriers of one connection of `node`; the last one is for new streams, and `first` is there already."""

    def __init__(self, node: Node, connection: Connection, first: Stream, *, dialled: bool) -> None:
        self.present: dict[Multiplexer, asyncio.Task[None]] = {}
        """Those that are not over, each with the task that runs it, the newest last."""
        self._node, self._connection, self._dialled = node, connection, dialled
        running = self._carry(first)
        if dialled:
            node.spawn(self._keep(running, is_detour=first.is_detour))

    def open(self) -> Substream | None:
        """A new stream for small messages; None while there is no carrier."""
        for multiplexer in reversed(self.present):
            if not multiplexer.is_lost:
                return multiplexer.open()
        return None

    async def take(self, stream: MessageStream) -> None:
        """Go on with a stream as a carrier, as the other side asked; returns when it is over, at once without room."""
        if self._dialled:
            raise ProtocolError("it has no carrier to open", peer=self._connection.peer_id)
        if len(self.present) < MAX_CARRIERS:
            await asyncio.wait({self._carry(stream.hand_over())})

    async def _keep(self, running: asyncio.Task[None], *, is_detour: bool) -> None:
        """Replace the carrier whenever it is lost, for as long as the connection lasts."""
        connection, now = self._connection, asyncio.get_running_loop().time
        pauses, detours = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S), Backoff(FIRST_DETOUR_S, LONGEST_DETOUR_S)
        while not connection.is_closed:
            with contextlib.suppress(RemoteError):
                if is_detour:
                    running = await self._improve(running, detours)
                begun_s = now()
                await asyncio.wait({running})
                if now() - begun_s > LONGEST_PAUSE_S:
                    pauses.overcome()
            await asyncio.sleep(pauses.next_s())
            with contextlib.suppress(RemoteError):
                carrier = await connection.open_stream(bulk=True)
                running, is_detour = await self._begin(carrier), carrier.is_detour

    async def _begin(self, carrier: Stream) -> asyncio.Task[None]:
        stream = self._node.wrap(carrier, self._connection, pulses=False)
        try:
            await stream.send(Call(MULTIPLEX))
        except BaseException:
            await stream.close()
            raise
        return self._carry(stream.hand_over())

    async def _improve(self, running: asyncio.Task[None], detours: Backoff) -> asyncio.Task[None]:
        """Look for a better way for the carrier at once, and now and then; returns the task of the one to which it was
        found, or of the old one once that is lost.
        """
        while not running.done():
            carrier = await self._connection.open_stream(bulk=True)
            if not carrier.is_detour:
                return await self._begin(carrier)
            await carrier.reset()
            await asyncio.wait({running}, timeout=detours.next_s())
        return running

    async def _retire(self, multiplexer: Multiplexer, running: asyncio.Task[None]) -> None:
        """End a carrier that was replaced, once no stream is on it any more."""
        await asyncio.sleep(LAST_WORDS_S)
        was_idle = False  # at the last look: one that is idle may still have the last answer on it
        while not (was_idle and multiplexer.is_idle):
            was_idle = multiplexer.is_idle
            await asyncio.sleep(LAST_WORDS_S)
        running.cancel()  # to give it up would blame the way for the silence on it

    def _carry(self, carrier: Stream) -> asyncio.Task[None]:
        node, connection = self._node, self._connection
        peer = connection.peer_id
        multiplexer = Multiplexer(
            carrier,
            peer,
            node.clockwork,
            node.heard_of(peer),
            node.backlog,
            lambda stream: node.take(stream, connection),
            opened_here=self._dialled,
        )
        replaced = list(self.present.items())
        running = self.present[multiplexer] = node.spawn(self._run(multiplexer))
        for older in replaced:
            node.spawn(self._retire(*older))
        return running

    async def _run(self, multiplexer: Multiplexer) -> None:
        try:
            await multiplexer.run()
        except ProtocolError as error:
            self._node.offend(multiplexer.peer, error.message)
        finally:
            del self.present[multiplexer]
