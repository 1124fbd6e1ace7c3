"""Bulk streams of one iroh connection over TCP, where the two peers can reach each other that way.

Theory of operation. With the first stream for bulk, the two sides exchange over the iroh connection, where both are
authenticated, the port that they listen on, a certificate and a word to dial with (`LaneOffer`). Then the side that
wants to open a stream dials the other, at the address at which that answers to iroh and at no other, so that no peer
can be sent to third parties. If that fails, as it does behind a NAT, it asks the other side to dial (`DialRequest`).
Each connection is for the streams of one side, which its first byte names; so the two sides never take it at the same
moment.

After a clean end a connection waits for the next stream; its opener closes it after `IDLE_S`. That word may be lost:
the other side closes it after twice as long, or as soon as its opener needs another one. A stream that finds no
connection waits for a new one, but only for some round trips; then it goes over iroh. It does not wait at all if the
other side ended an idle connection, as the system of a process that dies does: over iroh the silence is noticed
soonest. So do all streams while TCP is *off*: after a failure to connect, or after a stream that was aborted while the
other side was silent, because the path may be the cause. It is tried again after `OFF_S`, each time twice as long.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import ssl
from collections import deque
from collections.abc import Callable
from typing import Annotated, Any, Protocol

import msgspec

from minga.core.aio import Backoff, spawn
from minga.core.decoding import DECODING_ERRORS, decode_msgpack
from minga.core.errors import MingaError, ProtocolError, RemoteError
from minga.network.interface import Buffer, PeerId, Stream
from minga.network.interrupt import Interrupt
from minga.network.tcp.greeting import TcpGreeting
from minga.network.tcp.listener import HANDSHAKE_S, MAX_CERTIFICATE_BYTES, TcpListener, check_owner
from minga.network.tcp.sealed_channel import LEAST_PIECE_BYTES, PIECE_BYTES, SealedChannel

# ---- The offers that two peers exchange over iroh about TCP, and dialling by them.


MAX_CONTROL_BYTES = 4096
"""Largest message about TCP."""

DIALLER_OPENS, DIALLED_OPENS = 0, 1
"""The dialler's first byte: which side opens streams on this connection."""
WELCOME = b"\x01"
"""The answer to it: the dialler is who it should be, and its connection is wanted."""


class LaneOffer(msgspec.Struct, frozen=True, tag="lane"):
    """Where to dial (port 0: nowhere), with which certificate the sender will prove itself, and the word to say."""

    port: Annotated[int, msgspec.Meta(ge=0, le=65535)]
    certificate: Annotated[bytes, msgspec.Meta(min_length=1, max_length=MAX_CERTIFICATE_BYTES)]
    word: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]


class DialRequest(msgspec.Struct, frozen=True, tag="ask"):
    """Please dial me, for streams that I open."""


Control = LaneOffer | DialRequest


def encode(message: Control) -> bytes:
    """The bytes of a message."""
    return msgspec.msgpack.encode(message)


def decode(body: bytes, peer: PeerId) -> Control:
    """The message in `body`. Raises `ProtocolError` if there is none."""
    try:
        message: Any = decode_msgpack(body, Control)
    except DECODING_ERRORS as error:
        raise ProtocolError(f"malformed message about TCP: {error}", peer=peer) from error
    return message  # type: ignore[no-any-return]


async def dial(host: str, offer: LaneOffer, context: ssl.SSLContext, role: int) -> SealedChannel:
    """Connect to who made `offer`, at the IP address `host`; `context` trusts its certificate only.

    Raises `OSError` (`ssl.SSLError` and `TimeoutError` are some) if no peer answers there, or another one does.
    """
    greeting = TcpGreeting(lambda arrived, unsent: context.wrap_bio(arrived, unsent, server_hostname=offer.word))
    made = False
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            await asyncio.get_running_loop().create_connection(lambda: greeting, host, offer.port)
            await greeting.shake_hands()
            if greeting.tls.getpeercert(True) != offer.certificate:
                raise ConnectionRefusedError("it has another certificate than it told")
            channel = await greeting.greet(bytes([role]), WELCOME)
        made = True
        return channel
    finally:
        if not made:
            await greeting.close()


# ---- Streams over TCP: each has one connection of a pool to itself, and gives it back after a clean end.
#
# What is written goes into records as it is, and a record without content ends a direction. Once both have ended, the
# connection is ready for the next stream. A stream that is reset takes its connection with it.


_FIRST_BYTES = 1 << 10
"""How much of what is written goes into a record of its own: it cannot be read before all of that is there."""
_HELD_BYTES = 64


class TcpStream(Stream):
    """A bidirectional stream. A cancelled write may have sent a part: then it cannot be finished, which is a reset.

    A few bytes written wait for the end of this turn of the loop, to travel with what is written meanwhile.
    """

    def __init__(self, owner: TcpLane, channel: SealedChannel, *, opened_here: bool) -> None:
        self.interrupt = Interrupt()
        self._owner, self._channel, self._opened_here = owner, channel, opened_here
        self._held = b""
        self._wrote = self._torn = self._finished = self._said_end = self._ended = self._released = False
        channel.use(busy=True)

    async def write(self, data: Buffer) -> None:
        """Send all of `data`; see the interface."""
        view = memoryview(data).cast("B")
        self.interrupt.check()
        if self._finished:
            raise self._owner.explain("the stream was finished")
        if self._held or view.nbytes > _HELD_BYTES:
            first = view[: _FIRST_BYTES - len(self._held)]
            await self._send(self._take_held() + first, view[first.nbytes :])
        elif view.nbytes:
            self._held = bytes(view)
            asyncio.get_running_loop().call_soon(self._send_held)

    def write_now(self, data: bytes) -> bool:
        """Send `data` if that takes no waiting; see the interface."""
        if self.interrupt.fired or self._finished or self._held or len(data) > _HELD_BYTES:
            return False
        self._held = data
        asyncio.get_running_loop().call_soon(self._send_held)
        return True

    async def finish(self) -> None:
        """Say that nothing more will be written; see the interface."""
        self.interrupt.check()
        if self._torn:
            await self.reset()
            self.interrupt.check()
        if not self._finished:
            self._finished = True
            await self._send(self._take_held(), memoryview(b""), is_last=True)
            self._said_end = True
            self._release_if_over()

    async def read(self, max_bytes: int) -> bytes:
        """Return what is there; see the interface."""
        self.interrupt.check()
        channel = self._channel
        while max_bytes and not self._ended:
            if arrived_bytes := channel.arrived_bytes:
                target = bytearray(min(max_bytes, arrived_bytes, PIECE_BYTES))
                if got := channel.take(memoryview(target)):
                    del target[got:]
                    return bytes(target)
            if not self._look_for_end():
                if channel.lost is not None:
                    self._fail()
                await channel.wait_readable(self.interrupt)
        return b""

    async def read_into(
        self,
        target: memoryview,
        progress: Callable[[int], None] | None = None,
        filled: Callable[[int], None] | None = None,
    ) -> None:
        """Fill `target` completely; see the interface."""
        view = target.cast("B")
        self.interrupt.check()
        if not view.nbytes:
            return
        if self._ended or await self._channel.fill(view, self.interrupt, progress, filled) < view.nbytes:
            if self._look_for_end():
                raise ProtocolError("the stream ended early", peer=self._owner.peer_id)
            self._fail()

    async def reset(self) -> None:
        """Abort both directions; see the interface."""
        if self.interrupt.fired:
            return
        stalled_s = self._channel.stalled_s
        owner = self._owner
        self.interrupt.fire(lambda: owner.explain("the stream was reset"))
        unused = self._opened_here and not self._wrote
        if not self._released:
            self._release(clean=unused or (self._said_end and self._drop_to_end()), stalled_s=stalled_s)

    # ---- sending

    async def _send(self, first: bytes, rest: memoryview, *, is_last: bool = False) -> None:
        was_torn, self._wrote, self._torn = self._torn, True, True  # if cancelled, it is unknown how much was sent
        await self._channel.send(first, rest, self.interrupt, is_last=is_last)
        self._torn = was_torn
        if self._channel.lost is not None:
            self._fail()

    def _take_held(self) -> bytes:
        held, self._held = self._held, b""
        return held

    def _send_held(self) -> None:
        if self._held and not self.interrupt.fired:
            self._wrote = True
            self._channel.put(self._take_held())

    # ---- the end

    def _look_for_end(self) -> bool:
        """Whether all that the other side sent was taken. From then on the connection may be another stream's."""
        if not self._ended and self._channel.is_at_end:
            self._ended = True
            self._release_if_over()
        return self._ended

    def _drop_to_end(self) -> bool:
        """Whether the end of the other direction arrived already; earlier bytes are dropped."""
        scrap = memoryview(bytearray(LEAST_PIECE_BYTES))
        while not self._ended and self._channel.take(scrap):
            pass
        return self._ended or self._channel.is_at_end

    def _fail(self) -> None:
        """Raise what the loss of the connection means."""
        owner, why = self._owner, self._channel.lost or "the connection was lost"
        self.interrupt.fire(lambda: owner.explain(why))
        self._release(clean=False)
        self.interrupt.check()

    def _release_if_over(self) -> None:
        if self._said_end and self._ended:
            self._release(clean=True)

    def _release(self, *, clean: bool, stalled_s: float = 0.0) -> None:
        if not self._released:
            self._released = True
            self._owner.released(self, self._channel, clean=clean and not self._torn, stalled_s=stalled_s)


# ---- The iroh connection as its TCP lane sees it.


class LaneHost(Protocol):
    """What a lane needs of the iroh connection that it belongs to."""

    @property
    def peer_id(self) -> PeerId:
        """The peer at the other end."""

    def explain(self, what: str) -> MingaError:
        """The error to raise when `what` went wrong."""

    def remote_ip(self) -> str | None:
        """The IP address at which the other side answers at present; None if a relay is in between."""

    @property
    def round_trip_s(self) -> float | None:
        """Round-trip time in seconds; None if it is unknown."""

    async def send_control(self, body: bytes) -> None:
        """Send a message to the lane at the other end. Raises `RemoteError`."""

    def arrived(self, stream: Stream) -> None:
        """Take a stream that the other side opened."""

    def wonder(self) -> None:
        """No TCP connection is left and the other side ended one, as the system of a process that dies ends all."""


MAX_CHANNELS = 4
"""How many connections each side may have for streams that it opens; further streams go over iroh."""

PATIENCE_S = 1.0
"""Seconds that a stream waits for a new connection, besides `PATIENCE_TRIPS` round trips. It takes four of them."""
PATIENCE_TRIPS = 6

IDLE_S = 120.0
OFF_S, LONGEST_OFF_S = 30.0, 1920.0
LINGER_S = 20.0
"""Seconds, fewer than `OFF_S`, for which a connection is kept that no stream is to use any more: what was said over it
last may still be on its way.
"""

STALL_S = 1.0
"""Seconds of silence, besides four round trips, after which it is the way that is blamed for a stream's end."""

logger = logging.getLogger("minga.network")


class TcpLane:
    """The TCP connections that belong to one iroh connection."""

    def __init__(self, host: LaneHost, listener: TcpListener) -> None:
        self._host, self._listener = host, listener
        self._loop = asyncio.get_running_loop()
        self._word = secrets.token_hex(16)
        self._offer_sent = self._closed = False
        self._offer: asyncio.Future[LaneOffer] = self._loop.create_future()
        self._can_dial = True
        self._idle: dict[SealedChannel, asyncio.TimerHandle] = {}
        self._awaiting: dict[SealedChannel, asyncio.TimerHandle] = {}  # for streams of the other side, longest first
        self._mine: set[SealedChannel] = set()
        self._theirs: set[SealedChannel] = set()
        self._streams: set[TcpStream] = set()
        self._waiters: deque[asyncio.Future[SealedChannel | None]] = deque()
        self._asked: deque[asyncio.Future[SealedChannel]] = deque()
        self._making = self._answering = 0
        self._ended_there = False  # whether the other side, or its system, ended one since the last was made
        self._late = False  # whether making a connection takes longer than streams are to wait
        self._backoff, self._cannot_answer = Backoff(OFF_S, LONGEST_OFF_S), Backoff(OFF_S, LONGEST_OFF_S)
        self._past_traffic = (0, 0)
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> TcpStream | None:
        """A new stream; None if there is no way at present but over iroh."""
        while self._idle and not self._backoff.is_on:
            channel, timer = self._idle.popitem()
            timer.cancel()
            if channel.lost is None:
                return self._stream(channel, opened_here=True)
        made = await self._wait_for_channel()
        return None if made is None else self._stream(made, opened_here=True)

    def heard(self, body: bytes) -> None:
        """Take a message from the lane at the other end; one that makes no sense is dropped."""
        try:
            self._heard(decode(body, self._host.peer_id))
        except (RemoteError, OSError, ValueError) as error:
            self._turn_off(f"what it tells about TCP is refused: {error}")

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far."""
        sent, received = self._past_traffic
        channels = self._mine | self._theirs
        return sent + sum(c.bytes_sent for c in channels), received + sum(c.bytes_received for c in channels)

    def lose(self, make_error: Callable[[], MingaError]) -> None:
        """End everything, since the iroh connection has ended."""
        self._closed = True
        self._listener.forget(self._word)
        for stream in self._streams:
            stream.interrupt.fire(make_error)
        self._streams.clear()
        for channel in self._mine | self._theirs:
            channel.abort()
        for task in self._tasks:
            task.cancel()
        self._give_up_waiting()

    # ---- for streams

    @property
    def peer_id(self) -> PeerId:
        """The peer at the other end."""
        return self._host.peer_id

    def explain(self, what: str) -> MingaError:
        """The error to raise when `what` went wrong."""
        return self._host.explain(what)

    def released(self, stream: TcpStream, channel: SealedChannel, *, clean: bool, stalled_s: float) -> None:
        """Take back the connection of a stream."""
        self._streams.discard(stream)
        if stalled_s > STALL_S + 4 * (self._host.round_trip_s or 0.0):
            self._turn_off("the other side fell silent")
        if not clean or self._closed:
            channel.abort()
        elif channel in self._mine:
            self._provide(channel)
        else:
            self._await_stream(channel)

    # ---- connections for streams that are opened here

    async def _wait_for_channel(self) -> SealedChannel | None:
        if self._closed or self._backoff.is_on or len(self._mine) + self._making >= MAX_CHANNELS:
            return None
        self._making += 1
        spawn(self._make(), self._tasks)
        if self._late:
            return None
        waiter: asyncio.Future[SealedChannel | None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await asyncio.wait({waiter}, timeout=PATIENCE_S + PATIENCE_TRIPS * (self._host.round_trip_s or 0.0))
            self._late = not waiter.done()
            return waiter.result() if waiter.done() else None
        except asyncio.CancelledError:
            if waiter.done() and (channel := waiter.result()) is not None:
                self._provide(channel)
            raise
        finally:
            waiter.cancel()

    async def _make(self) -> None:
        try:
            self._provide(await self._obtain())
            self._backoff.overcome()
        except (OSError, ValueError, MingaError) as error:
            self._turn_off(str(error) or type(error).__name__)
        finally:
            self._making -= 1

    async def _obtain(self) -> SealedChannel:
        """Dial, or have the other side dial. Raises `OSError`, `ValueError` or `RemoteError` if neither works."""
        await self._send_offer()
        async with asyncio.timeout(HANDSHAKE_S):
            offer = await asyncio.shield(self._offer)
        if self._can_dial:
            try:
                return self._keep(await self._dial(offer, DIALLER_OPENS), self._mine)
            except OSError as error:
                logger.debug("cannot dial peer %s over TCP: %s", self.peer_id[:10], error)
                self._can_dial = False
        if not self._listener.port:
            raise ConnectionError("neither side can be dialled")
        asked: asyncio.Future[SealedChannel] = self._loop.create_future()
        self._asked.append(asked)
        await self._host.send_control(encode(DialRequest()))
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                return await asked
        except BaseException:
            if asked.done() and not asked.cancelled():  # it came in the same moment
                self._provide(asked.result())
            raise

    async def _dial(self, offer: LaneOffer, role: int) -> SealedChannel:
        ip = self._host.remote_ip()
        if ip is None or not offer.port:
            raise ConnectionError("it cannot be dialled")
        return await dial(ip, offer, self._listener.certificate.client_context(offer.certificate), role)

    def _provide(self, channel: SealedChannel) -> None:
        """Give a free connection to a stream that waits for one, or keep it."""
        self._late = False
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(channel)
                return
        channel.use(busy=False)
        channel.on_readable = channel.abort  # nothing is due
        self._idle[channel] = self._loop.call_later(IDLE_S, self._expire, channel)

    def _expire(self, channel: SealedChannel) -> None:
        """No stream was opened for long."""
        del self._idle[channel]
        channel.abort()

    # ---- connections for streams that the other side opens

    def _make_room(self) -> bool:
        """Whether there is room for one more. The other side asks for none while it has one that waits: those that do
        here are lost there.
        """
        if self._awaiting and len(self._theirs) + self._answering >= MAX_CHANNELS:
            next(iter(self._awaiting)).abort()
        return not self._closed and len(self._theirs) + self._answering < MAX_CHANNELS

    def _adopt(self, greeting: TcpGreeting, role: int) -> bool:
        """Take a connection that came in at the listener. Raises `OSError` if it breaks in this moment."""
        if role == DIALLER_OPENS and self._make_room():
            self._await_stream(self._keep(greeting.welcome(WELCOME), self._theirs))
            return True
        while role == DIALLED_OPENS and self._asked and self._asked[0].done():
            self._asked.popleft()
        if role == DIALLED_OPENS and self._asked:
            channel = self._keep(greeting.welcome(WELCOME), self._mine)
            self._asked.popleft().set_result(channel)
            return True
        return False

    async def _answer(self) -> None:
        """Dial because the other side asked for it."""
        try:
            channel = await self._dial(self._offer.result(), DIALLED_OPENS)
            self._await_stream(self._keep(channel, self._theirs))
        except (OSError, ValueError) as error:
            logger.debug("cannot dial peer %s over TCP as asked: %s", self.peer_id[:10], error)
            self._cannot_answer.suffer()
        finally:
            self._answering -= 1

    def _await_stream(self, channel: SealedChannel) -> None:
        if channel.lost is not None:
            return
        channel.use(busy=False)
        self._awaiting[channel] = self._loop.call_later(2.0 * IDLE_S, channel.abort)

        def begin() -> None:
            self._awaiting.pop(channel).cancel()
            self._host.arrived(self._stream(channel, opened_here=False))

        channel.on_readable = begin
        if channel.arrived_bytes:
            begin()

    # ---- either

    def _heard(self, message: Control) -> None:
        if isinstance(message, LaneOffer):
            if not self._offer.done() and not self._closed:
                check_owner(message.certificate, self.peer_id)
                self._listener.invite(self._word, message.certificate, self._adopt)
                self._offer.set_result(message)
                spawn(self._send_offer(), self._tasks)
        elif self._offer.done() and not self._cannot_answer.is_on and self._make_room():
            self._answering += 1
            spawn(self._answer(), self._tasks)

    async def _send_offer(self) -> None:
        if not self._offer_sent:
            self._offer_sent = True
            offer = LaneOffer(self._listener.port, self._listener.certificate.der, self._word)
            with contextlib.suppress(MingaError):  # the connection is gone, and with it all this
                await self._host.send_control(encode(offer))

    def _keep(self, channel: SealedChannel, channels: set[SealedChannel]) -> SealedChannel:
        def forget() -> None:
            channels.discard(channel)
            if timer := self._awaiting.pop(channel, None):
                timer.cancel()
            if timer := self._idle.pop(channel, None):
                timer.cancel()
                self._late = True  # the other side ended it: it may be gone
            self._ended_there = self._ended_there or channel.ended_there
            sent, received = self._past_traffic
            self._past_traffic = sent + channel.bytes_sent, received + channel.bytes_received
            if self._ended_there and not (self._mine or self._theirs):
                self._host.wonder()

        self._ended_there = False
        channels.add(channel)
        channel.on_lost = forget
        if self._closed or channel.lost is not None:
            channel.abort()
            forget()
        return channel

    def _stream(self, channel: SealedChannel, *, opened_here: bool) -> TcpStream:
        channel.on_readable = None
        stream = TcpStream(self, channel, opened_here=opened_here)
        self._streams.add(stream)
        return stream

    def _turn_off(self, why: str) -> None:
        logger.debug("no TCP to peer %s for a while: %s", self.peer_id[:10], why)
        self._backoff.suffer()
        self._can_dial = True
        for channel, timer in self._idle.items():
            timer.cancel()
            self._loop.call_later(LINGER_S, channel.abort)
        self._idle.clear()
        self._give_up_waiting()

    def _give_up_waiting(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()
