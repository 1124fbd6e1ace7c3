"""Bulk streams of one iroh connection over TCP, where the two peers can reach each other that way.

Theory of operation. With the first stream for bulk, the two sides exchange over the iroh connection, where both are
authenticated, the port that they listen on, a certificate and a word to dial with (`LaneOffer`). Then the side that
wants to open a stream dials the other, at the address at which that answers to iroh and at no other, so that no peer
can be sent to third parties. If that fails, as it does behind a NAT, it asks the other side to dial (`DialRequest`).
Each connection is for the streams of one side, which its first byte names; so the two sides never take it at the same
moment.

After a clean end a connection waits for the next stream; its opener closes it after `IDLE_S`. A stream that finds no
connection waits for a new one, but only for some round trips; then it goes over iroh. It does not wait at all if the
other side ended an idle connection, as the system of a process that dies does: over iroh the silence is noticed
soonest. So do all streams while TCP is
*off*: after a failure to connect, or after a stream that was aborted while the other side was silent, because the path
may be the cause. It is tried again after `OFF_S`, each time twice as long.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from minga.core.aio import Backoff
from minga.core.errors import MingaError, RemoteError
from minga.network.interface import PeerId
from minga.network.tcp.certificate import check_owner
from minga.network.tcp.dial import (
    DIALLED_OPENS,
    DIALLER_OPENS,
    WELCOME,
    Control,
    DialRequest,
    LaneOffer,
    decode,
    dial,
    encode,
)
from minga.network.tcp.greeting import TcpGreeting
from minga.network.tcp.host import LaneHost
from minga.network.tcp.listener import HANDSHAKE_S, TcpListener
from minga.network.tcp.sealed_channel import SealedChannel
from minga.network.tcp.stream import TcpStream

MAX_CHANNELS = 4
"""How many connections each side may have for streams that it opens; further streams go over iroh."""

PATIENCE_S = 1.0
"""Seconds that a stream waits for a new connection, besides `PATIENCE_TRIPS` round trips. It takes four of them."""
PATIENCE_TRIPS = 6

IDLE_S = 120.0
OFF_S, LONGEST_OFF_S = 30.0, 1920.0

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
        while self._idle:
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
        self._clear_idle()
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
        if not clean or self._closed or self._backoff.is_on:
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
        self._spawn(self._make())
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

    @property
    def _has_room(self) -> bool:
        return not self._closed and len(self._theirs) + self._answering < MAX_CHANNELS

    def _adopt(self, greeting: TcpGreeting, role: int) -> bool:
        """Take a connection that came in at the listener. Raises `OSError` if it breaks in this moment."""
        if role == DIALLER_OPENS and self._has_room:
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
        channel.use(busy=False)

        def begin() -> None:
            self._host.arrived(self._stream(channel, opened_here=False))

        channel.on_readable = begin
        if channel.has_arrived:
            begin()

    # ---- either

    def _heard(self, message: Control) -> None:
        if isinstance(message, LaneOffer):
            if not self._offer.done() and not self._closed:
                check_owner(message.certificate, self.peer_id)
                self._listener.invite(self._word, message.certificate, self._adopt)
                self._offer.set_result(message)
                self._spawn(self._send_offer())
        elif self._offer.done() and not self._cannot_answer.is_on and self._has_room:
            self._answering += 1
            self._spawn(self._answer())

    async def _send_offer(self) -> None:
        if not self._offer_sent:
            self._offer_sent = True
            offer = LaneOffer(self._listener.port, self._listener.certificate.der, self._word)
            with contextlib.suppress(MingaError):  # the connection is gone, and with it all this
                await self._host.send_control(encode(offer))

    def _keep(self, channel: SealedChannel, channels: set[SealedChannel]) -> SealedChannel:
        def forget() -> None:
            channels.discard(channel)
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

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _turn_off(self, why: str) -> None:
        logger.debug("no TCP to peer %s for a while: %s", self.peer_id[:10], why)
        self._backoff.suffer()
        self._can_dial = True
        self._clear_idle()
        self._give_up_waiting()

    def _clear_idle(self) -> None:
        for channel in list(self._idle):
            self._idle.pop(channel).cancel()
            channel.abort()

    def _give_up_waiting(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()
