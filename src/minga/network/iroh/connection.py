"""Connections of the iroh network: two QUIC connections each, one for each direction of data.

Theory of operation. In a QUIC connection that carries data both ways, iroh's transport counts packets that hold only
acknowledgements as lost, since no acknowledgement comes for them, and slows down as if the network were congested. Two
peers that send to each other at once fall to a fifth of the speed that each has alone. A *lane* is a QUIC connection on
which only one side sends data, where this cannot happen. The dialler dials two lanes. A preface on each gives its
number, and a token that both share. From then on all bytes that a peer writes leave by its own lane.

A stream is a pair of one-way QUIC streams, one on each lane, that know each other by number. If either lane is lost or
closed, the connection is; and so if the other side's process has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import struct
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, Literal
from weakref import WeakValueDictionary

from iroh import iroh_ffi
from msgspec.structs import replace

from minga.core.aio import end, spawn
from minga.core.errors import MingaError, ProtocolError, UnreachableError
from minga.network.interface import Buffer, Connection, LinkFacts, PeerId, Stream
from minga.network.interrupt import AcceptQueue, Interrupt
from minga.network.iroh import ffi_bytes
from minga.network.tcp.bulk_lane import MAX_CONTROL_BYTES, TcpLane
from minga.network.tcp.listener import TcpListener

# ---- Streams of the iroh network: one one-way QUIC stream for each direction.
#
# Every one-way stream begins with a header: its kind and the number that its opener gave to the pair. OPEN comes from
# the side that opened the pair, ANSWER from the other one as soon as it has something to say. ABORT says that the
# answer to this number will not come, or no further. A QUIC reset may overtake the header of the stream that it
# resets; without ABORT the opener would then wait for an answer for ever. CONTROL belongs to no stream: a message to
# the TCP lane at the other end, whose length stands in the place of the number.


HEADER = struct.Struct(">BQ")
OPEN, ANSWER, ABORT, CONTROL = range(4)

BINDING_ERRORS = (iroh_ffi.IrohError, iroh_ffi.InternalError)
"""The exceptions of the bindings: errors of the transport, and panics inside the foreign library."""


class IrohStream(Stream):
    """A bidirectional stream. A cancelled write may have sent a part: such a stream is good for `reset` only."""

    def __init__(self, connection: IrohConnection, number: int, *, opened_here: bool) -> None:
        self.interrupt = Interrupt()
        self._connection, self._number, self._opened_here = connection, number, opened_here
        self._sender: Any = None
        self._receiver: Any = None
        self._receiver_arrived: asyncio.Future[None] | None = None
        self._opening = asyncio.Lock()
        self._finished = self._ended = self._broken = False

    def attach(self, receiver: Any) -> bool:
        """Take the one-way stream that carries the other side's bytes; False if there is one, or no use for it."""
        if self._receiver is not None or self.interrupt.fired:
            return False
        self._receiver = receiver
        if self._receiver_arrived is not None and not self._receiver_arrived.done():
            self._receiver_arrived.set_result(None)
        return True

    async def write(self, data: Buffer) -> None:
        """Send all of `data`; see the interface."""
        with self._explained():
            self.interrupt.check()
            view = memoryview(data).cast("B")
            if self._sender is None and view.nbytes:
                # The header travels with the first bytes: a packet and a foreign call less for each stream.
                first = view[: 4096 - HEADER.size]
                await self._open_sender(bytes(first))
                view = view[first.nbytes :]
            await ffi_bytes.write_all(self._sender, view, self.interrupt)

    async def finish(self) -> None:
        """Say that nothing more will be written; see the interface."""
        with self._explained():
            if not self._finished:
                self.interrupt.check()
                if self._sender is None:
                    await self._open_sender(b"")
                self._finished = True
                await self._sender.finish()

    async def read(self, max_bytes: int) -> bytes:
        """Return what is there; see the interface."""
        target = bytearray(min(max_bytes, ffi_bytes.PIECE_BYTES))
        got = await self._read_some(memoryview(target))
        del target[got:]
        return bytes(target)

    async def read_into(
        self,
        target: memoryview,
        progress: Callable[[int], None] | None = None,
        filled: Callable[[int], None] | None = None,
    ) -> None:
        """Fill `target` completely; see the interface."""
        view = target.cast("B")
        while view.nbytes:
            got = await self._read_some(view)
            if not got:
                raise ProtocolError("the stream ended early", peer=self._connection.peer_id)
            view = view[got:]
            if progress is not None:
                progress(got)
            if filled is not None:
                filled(got)
            await asyncio.sleep(0)

    async def reset(self) -> None:
        """Abort both directions; see the interface."""
        if self.interrupt.fired:
            return
        connection = self._connection  # the interrupt, which is a part of this stream, must not hold the stream
        self.interrupt.fire(lambda: connection.explain("the stream was reset"))
        if self._finished and self._ended:
            return
        if not self._opened_here and not self._broken:
            self._connection.abort_answer(self._number)
        # The interrupt makes waiting calls let go of the foreign locks, in the next turn of the loop.
        ends = [self._sender.reset] if self._sender is not None else []
        if self._receiver is not None and not self._ended:
            ends.append(self._receiver.stop)
        await self._connection.break_off(*ends)

    def lose(self, error: Callable[[], MingaError]) -> None:
        """The connection is gone: end everything that waits, and let go of it."""
        self.interrupt.fire(error)
        self._sender = self._receiver = None

    async def _open_sender(self, first: bytes) -> None:
        async with self._opening:
            self.interrupt.check()
            kind = OPEN if self._opened_here else ANSWER
            sender = await self._connection.open_sender(HEADER.pack(kind, self._number) + first, self.interrupt)
            if not self.interrupt.fired:
                self._sender = sender
                return
            # It fired in this very turn, and the reset did not know of this sender yet.
            await self._connection.break_off(sender.reset)
            del sender
            self.interrupt.check()

    async def _read_some(self, target: memoryview) -> int:
        with self._explained():
            self.interrupt.check()
            if self._ended or not target.nbytes:
                return 0
            if self._receiver is None:
                self._receiver_arrived = asyncio.get_running_loop().create_future()
                await self.interrupt.wait(self._receiver_arrived)
                self.interrupt.check()
            try:
                got = await ffi_bytes.read_into(self._receiver, target, self.interrupt)
            except BINDING_ERRORS:
                # A reset ends both directions, but that it stopped reading is told on the other lane, perhaps later.
                connection = self._connection
                self.interrupt.fire(lambda: connection.explain("the other side reset the stream"))
                raise
            self._ended = not got
            return got

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except BINDING_ERRORS as error:
            self._broken = True
            raise self._connection.explain(describe(error)) from None


def describe(error: BaseException) -> str:
    """The bindings' text about an error, on one line of bounded length."""
    text = error.message() if isinstance(error, iroh_ffi.IrohError) else str(error)
    text = re.sub(r" \([^()]*\.rs:\d+:\d+\)", "", text)  # where in iroh's source is of no interest to the reader
    return " ".join(text.split())[:300] or type(error).__name__


async def read_exactly(receiver: Any, size: int, interrupt: Interrupt) -> bytes:
    """Read `size` bytes from an iroh `RecvStream`. Raises `UnreachableError` if it ends first."""
    body = bytearray(size)
    view = memoryview(body)
    while view.nbytes:
        got = await ffi_bytes.read_into(receiver, view, interrupt)
        if not got:
            raise UnreachableError("a stream ended within its header")
        view = view[got:]
    return bytes(body)


# ---- Whether the process at the other end of a connection has ended, found out long before its silence shows it.
#
# Theory of operation. When a process ends, however it does, its system closes all its TCP connections. It does not
# close them while the process is stopped or busy, and they outlive a cut. That alone proves nothing: a living peer
# aborts the connection of a stream that it resets, which may be the only one, and routers end connections, too. So
# this side then asks over iroh, whose threads at the other end acknowledge each packet whatever Python does there. If
# no TCP connection is left, and nothing at all comes over UDP although it was asked for, the process is gone. On a
# link of no length that takes `SETTLE_S + ASKED * PAUSE_S`.
#
# A pause counts only if this process slept through it on time: one that was stopped or starved hears nothing either.


SETTLE_S: Final = 0.05
"""Seconds, besides a round trip, in which what was sent before the end arrives."""

PAUSE_S: Final = 0.05
"""Seconds, besides a round trip, that an answer may take."""

ASKED: Final = 5
"""How often it is asked in vain until its process counts as ended."""

MOST_ASKED: Final = 20
LATE: Final = 2.0
"""A pause that took so many times as long does not count."""


# ---- How long a round trip takes.
#
# iroh smooths round-trip times over some eight packets, and the first sample is that of the handshake, which waits
# until the other side's Python accepts the connection. Where messages go over TCP, iroh sends no packets whose
# acknowledgements would correct it: a peer that was busy when it was dialled seemed 0.4 s away for good. So a new
# connection asks until the first sample is forgotten, and later whenever the round-trip time is looked up.


SAMPLES: Final = 24
"""How often a new connection asks; of the first sample's error (7 / 8) ** 24 = 4 % are left."""

SAMPLE_PAUSE_S: Final = 0.05
"""Seconds from one to the next, so that each is acknowledged for itself."""

MAX_STREAMS = 512
"""How many one-way streams the other side may have open at once. Each holds at most 1.25 MB that were not read."""

PATH_AGE_S = 1.0
"""Greatest age in seconds of the round-trip time and kind of path; looking them up again takes a while."""


class IrohConnection(Connection):
    """A connection over two lanes. `explain` turns a description into the error that the caller should see."""

    def __init__(
        self,
        peer_id: PeerId,
        outgoing: Any,
        incoming: Any,
        explain: Callable[[str, PeerId], MingaError],
        on_lost: Callable[[IrohConnection], None],
        listener: TcpListener | None,
    ) -> None:
        self._peer_id, self._outgoing, self._incoming = peer_id, outgoing, incoming
        self._explain, self._on_lost = explain, on_lost
        self._interrupt = Interrupt()
        self._streams: WeakValueDictionary[tuple[bool, int], IrohStream] = WeakValueDictionary()
        self._opened = 0
        self._arrived: AcceptQueue[Stream] = AcceptQueue()
        self._tcp = TcpLane(self, listener) if listener else None
        self._wondering: asyncio.Task[None] | None = None
        self._process_ended = False
        self._facts, self._path_time = LinkFacts(None, "unknown", 0, 0), float("-inf")
        self._tasks: set[asyncio.Task[None]] = set()
        incoming.set_max_concurrent_uni_streams(MAX_STREAMS)
        spawn(self._accept_forever(incoming), self._tasks)
        spawn(self._drop_datagrams(incoming), self._tasks)
        spawn(self._watch(outgoing), self._tasks)
        self._sampling: asyncio.Handle = asyncio.get_running_loop().call_soon(self._sample_round_trip, SAMPLES)

    @property
    def peer_id(self) -> PeerId:
        """The id of the other side, proven by its key."""
        return self._peer_id

    async def open_stream(self, *, bulk: bool = False) -> Stream:
        """Open a stream; see the interface. One for bulk goes over TCP if there is a way (`tcp.bulk_lane`)."""
        self._check_open()
        if bulk and self._tcp is not None and (over_tcp := await self._tcp.open()) is not None:
            return over_tcp
        self._interrupt.check()
        self._opened += 1
        stream = self._new_stream(self._opened, opened_here=True)
        stream.is_detour = self._tcp is not None
        return stream

    async def accept_stream(self) -> Stream:
        """Wait for the other side to open a stream; see the interface."""
        self._check_open()
        return await self._arrived.take()

    def facts(self) -> LinkFacts:
        """Facts about both lanes together; round-trip time and path are at most `PATH_AGE_S` seconds old.

        iroh tells round-trip times in whole milliseconds; less than one counts as half of one.
        """
        if not self._interrupt.fired:
            self._look_at_path()
            self._measure()
        return self._facts

    @property
    def round_trip_s(self) -> float | None:
        """Round-trip time in seconds; see the interface."""
        if not self._interrupt.fired:
            self._look_at_path()
        return self._facts.round_trip_s

    @property
    def seen_at(self) -> str | None:
        """The `ip:port` of the path in use; see the interface."""
        path = self._path()
        return str(path.remote_addr) if path is not None and path.is_ip else None

    @property
    def is_closed(self) -> bool:
        """Whether the connection is known to be gone."""
        return self._interrupt.fired

    @property
    def has_process_ended(self) -> bool:
        """Whether it was lost for that; see the interface."""
        return self._process_ended

    async def close(self) -> None:
        """Close both lanes; see the interface."""
        self._lose("the connection was closed")
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        await end(*tasks)

    # ---- for streams

    def explain(self, what: str) -> MingaError:
        """The error to raise when `what` went wrong; also notices whether the connection is gone."""
        if not self._interrupt.fired and self._lane_lost():
            self._lose("the connection was lost")
        return self._explain(what, self._peer_id)

    async def open_sender(self, first: bytes, interrupt: Interrupt) -> Any:
        """Open a one-way stream on the outgoing lane and send `first`; waits while too many are open."""
        # An interrupt would come too late for this call only if the other side allows no streams for ever.
        self._interrupt.check()
        sender = await self._outgoing.open_uni()
        try:
            await ffi_bytes.write_all(sender, first, interrupt)
            return sender
        except BaseException:
            await self.break_off(sender.reset)
            raise
        finally:
            del sender  # which the error would hold

    async def break_off(self, *ends: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        """Call the foreign `reset` or `stop` of one-way streams; that is seen through even if the caller is cancelled.

        The transport finishes a sender that is merely released: the other side would take the bytes sent until then for
        the whole stream.
        """

        async def end_each() -> None:
            for end_one in ends:
                with contextlib.suppress(*BINDING_ERRORS):
                    await end_one(0)

        await asyncio.wait({spawn(end_each(), self._tasks)})

    def abort_answer(self, number: int) -> None:
        """Tell the opener of stream `number` that no answer, or no more of it, will come."""
        if not self._interrupt.fired:
            spawn(self._send_abort(number), self._tasks)

    # ---- for the TCP lane

    def remote_ip(self) -> str | None:
        """The IP address at which the other side answers at present; None if a relay is in between."""
        seen_at = self.seen_at
        return None if seen_at is None else seen_at.rpartition(":")[0].strip("[]")

    async def send_control(self, body: bytes) -> None:
        """Send a message to the lane at the other end. Raises `RemoteError`."""
        try:
            sender = await self.open_sender(HEADER.pack(CONTROL, len(body)) + body, self._interrupt)
            await sender.finish()
        except BINDING_ERRORS as error:
            raise self.explain(describe(error)) from None

    def arrived(self, stream: Stream) -> None:
        """Take a stream that the other side opened."""
        self._arrived.put(stream)

    def wonder(self) -> None:
        """The other side ended its TCP connections: find out whether its process has ended."""
        if not self._interrupt.fired and self._wondering is None:
            self._wondering = spawn(self._look_after_process(), self._tasks)

    # ---- inner workings

    def _check_open(self) -> None:
        if self.is_closed:
            self._interrupt.check()

    def _lane_lost(self) -> bool:
        return self._outgoing.close_reason() is not None or self._incoming.close_reason() is not None

    def _lose(self, what: str) -> None:
        """Close both lanes, and end everything that waits for them."""
        if self._interrupt.fired:
            return
        with contextlib.suppress(*BINDING_ERRORS):
            self._measure()  # the last word on how much was moved

        explain, peer = self._explain, self._peer_id

        def error() -> MingaError:
            return explain(what, peer)

        self._interrupt.fire(error)
        # The lanes first: the transport finishes a sender that is released on a lane that is open, and what was sent
        # until then would pass for the whole stream.
        for lane in (self._outgoing, self._incoming):
            with contextlib.suppress(*BINDING_ERRORS):
                lane.close(0, b"")
        for stream in list(self._streams.values()):
            stream.lose(error)
        self._arrived.fail(error)
        if self._wondering is not None and self._wondering is not asyncio.current_task():
            self._wondering.cancel()
        self._wondering = None
        self._sampling.cancel()
        if self._tcp is not None:
            self._tcp.lose(error)
            self._tcp = None  # it knows this connection: neither should have to wait for the garbage collector
        # The transport keeps its socket, and so its port, while anybody holds a lane or a stream of one. An error that
        # is still looked at holds this connection.
        self._outgoing = self._incoming = None
        self._on_lost(self)

    def _new_stream(self, number: int, *, opened_here: bool) -> IrohStream:
        stream = IrohStream(self, number, opened_here=opened_here)
        self._streams[opened_here, number] = stream
        return stream

    async def _watch(self, lane: Any) -> None:
        with contextlib.suppress(*BINDING_ERRORS):
            await lane.closed()
        self._lose("the connection was lost")

    async def _accept_forever(self, lane: Any) -> None:
        with contextlib.suppress(*BINDING_ERRORS):
            while True:
                spawn(self._introduce(await lane.accept_uni()), self._tasks)
        self._lose("the connection was lost")

    async def _introduce(self, receiver: Any) -> None:
        """Read which stream a one-way stream from the other side belongs to, and hand it over."""
        with contextlib.suppress(MingaError, *BINDING_ERRORS):
            kind, number = HEADER.unpack(await read_exactly(receiver, HEADER.size, self._interrupt))
            if kind == CONTROL and self._tcp is not None and number <= MAX_CONTROL_BYTES:
                self._tcp.heard(await read_exactly(receiver, number, self._interrupt))
                return
            if kind == OPEN and (False, number) not in self._streams:
                stream = self._new_stream(number, opened_here=False)
                stream.attach(receiver)
                self._arrived.put(stream)
                return
            mine = self._streams.get((True, number))
            if kind == ABORT and mine is not None:
                peer = self._peer_id
                mine.interrupt.fire(lambda: UnreachableError("the other side reset the stream", peer=peer))
            elif kind in (OPEN, CONTROL) or mine is None or not mine.attach(receiver):
                await receiver.stop(0)  # of no use to anyone; the other side learns it when it writes

    async def _look_after_process(self) -> None:
        with contextlib.suppress(*BINDING_ERRORS):
            if await self._is_silent():
                self._process_ended = True
                self._lose("its process has ended")
        self._wondering = None

    async def _is_silent(self) -> bool:
        """Whether nothing at all comes over UDP, however often it is asked for."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(SETTLE_S + (self.round_trip_s or 0.0))
        before, in_vain = self._received_over_udp(), 0
        for _ in range(MOST_ASKED):
            self._ask()
            pause_s, asked_s = PAUSE_S + (self.round_trip_s or 0.0), loop.time()
            await asyncio.sleep(pause_s)
            if self._received_over_udp() != before:
                return False
            in_vain += loop.time() - asked_s < LATE * pause_s
            if in_vain == ASKED:
                return True
        return False

    def _received_over_udp(self) -> int:
        return sum(lane.stats().udp_rx_bytes for lane in (self._outgoing, self._incoming))

    def _ask(self) -> None:
        """Send what iroh's threads at the other end acknowledge, whatever Python does there, and nobody heeds."""
        self._outgoing.send_datagram(b"\0")

    async def _drop_datagrams(self, lane: Any) -> None:
        with contextlib.suppress(*BINDING_ERRORS):
            while True:
                await lane.read_datagram()

    def _sample_round_trip(self, left: int) -> None:
        with contextlib.suppress(*BINDING_ERRORS):
            self._ask()
        if left > 1:
            self._sampling = asyncio.get_running_loop().call_later(SAMPLE_PAUSE_S, self._sample_round_trip, left - 1)

    async def _send_abort(self, number: int) -> None:
        with contextlib.suppress(MingaError, *BINDING_ERRORS):
            sender = await self.open_sender(HEADER.pack(ABORT, number), self._interrupt)
            await sender.finish()

    def _look_at_path(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._path_time < PATH_AGE_S:
            return
        self._path_time = now
        with contextlib.suppress(*BINDING_ERRORS):
            self._ask()  # for the next time
        if (path := self._path()) is not None:
            kind: Literal["relayed", "direct"] = "relayed" if path.is_relay else "direct"
            self._facts = replace(self._facts, round_trip_s=max(path.rtt_ms, 0.5) / 1e3, path=kind)

    def _path(self) -> Any:
        """The path that carries what is sent; None if there is none at the moment.

        iroh selects one address of a peer for all connections to it, and one that has no path to that address goes on
        with its own, of which none is selected then.
        """
        if self._interrupt.fired:
            return None
        return max(self._outgoing.paths(), key=lambda path: (path.is_selected, path.is_ip, -path.rtt_ms), default=None)

    def _measure(self) -> None:
        stats = [lane.stats() for lane in (self._outgoing, self._incoming)]
        sent, received = sum(s.udp_tx_bytes for s in stats), sum(s.udp_rx_bytes for s in stats)
        tcp_sent, tcp_received = self._tcp.traffic() if self._tcp is not None else (0, 0)
        self._facts = replace(self._facts, bytes_sent=sent + tcp_sent, bytes_received=received + tcp_received)
