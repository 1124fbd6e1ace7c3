"""Connections of the iroh network: two QUIC connections each, one for each direction of data.

Theory of operation. In a QUIC connection that carries data both ways, iroh's transport counts packets that hold only
acknowledgements as lost, since no acknowledgement comes for them, and slows down as if the network were congested. Two
peers that send to each other at once fall to a fifth of the speed that each has alone. A *lane* is a QUIC connection on
which only one side sends data, where this cannot happen. The dialler dials two lanes. A preface on each gives its
number, and a token that both share. From then on all bytes that a peer writes leave by its own lane.

A stream is a pair of one-way QUIC streams, one on each lane, that know each other by number; see `stream.py`.
If either lane is lost or closed, the connection is; and if the other side's process has ended, see `process_end.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Literal
from weakref import WeakValueDictionary

from msgspec.structs import replace

from minga.core.aio import end
from minga.core.errors import MingaError, UnreachableError
from minga.network.interface import Connection, LinkFacts, PeerId, Stream
from minga.network.interrupt import Interrupt
from minga.network.iroh import ffi_bytes
from minga.network.iroh.accept_queue import AcceptQueue
from minga.network.iroh.process_end import has_ended
from minga.network.iroh.stream import (
    ABORT,
    BINDING_ERRORS,
    CONTROL,
    HEADER,
    OPEN,
    IrohStream,
    describe,
    read_exactly,
)
from minga.network.tcp.bulk_lane import TcpLane
from minga.network.tcp.dial import MAX_CONTROL_BYTES
from minga.network.tcp.listener import TcpListener

MAX_STREAMS = 512
"""How many one-way streams the other side may have open at once. Each holds at most 1.25 MB that were not read."""

NO_STREAM = 0
"""The number of no stream: what is said of it is acknowledged, and nothing else comes of it."""

PATH_AGE_S = 1.0
"""Greatest age in seconds of the round-trip time and kind of path; looking them up again takes a while."""

ASK_PERIOD_S = 0.5
"""Seconds between two checks whether a connection is gone; the transport reports a lost one without a check."""


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
        self._arrived: AcceptQueue[Stream] = AcceptQueue(self._interrupt)
        self._tcp = TcpLane(self, listener) if listener else None
        self._asked_s = float("-inf")
        self._wondering: asyncio.Task[None] | None = None
        self._process_ended = False
        self._facts, self._path_time = LinkFacts(None, "unknown", 0, 0), float("-inf")
        self._tasks: set[asyncio.Task[None]] = set()
        incoming.set_max_concurrent_uni_streams(MAX_STREAMS)
        self._spawn(self._accept_forever())
        self._spawn(self._watch())

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
        stream.is_detour = bulk and self._tcp is not None
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
        """Whether the connection is known to be gone; asks iroh, which takes a while, every `ASK_PERIOD_S` at most."""
        now = asyncio.get_running_loop().time()
        if not self._interrupt.fired and now - self._asked_s >= ASK_PERIOD_S:
            self._asked_s = now
            if self._lane_lost():
                self._lose("the connection was lost")
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
        sender = await self._outgoing.open_uni()
        try:
            await ffi_bytes.write_all(sender, first, interrupt)
        except BaseException:
            await self.break_off(sender.reset)
            raise
        return sender

    async def break_off(self, *ends: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        """Call the foreign `reset` or `stop` of one-way streams; that is seen through even if the caller is cancelled.

        The transport finishes a sender that is merely released: the other side would take the bytes sent until then for
        the whole stream.
        """

        async def end_each() -> None:
            for end_one in ends:
                with contextlib.suppress(*BINDING_ERRORS):
                    await end_one(0)

        await asyncio.wait({self._spawn(end_each())})

    def abort_answer(self, number: int) -> None:
        """Tell the opener of stream `number` that no answer, or no more of it, will come."""
        if not self._interrupt.fired:
            self._spawn(self._send_abort(number))

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
            self._wondering = self._spawn(self._look_after_process())

    # ---- inner workings

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

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
        for stream in list(self._streams.values()):
            stream.interrupt.fire(error)
        self._arrived.clear()
        if self._wondering is not None and self._wondering is not asyncio.current_task():
            self._wondering.cancel()
        self._wondering = None
        if self._tcp is not None:
            self._tcp.lose(error)
            self._tcp = None  # it knows this connection: neither should have to wait for the garbage collector
        for lane in (self._outgoing, self._incoming):
            with contextlib.suppress(*BINDING_ERRORS):
                lane.close(0, b"")
        self._on_lost(self)

    def _new_stream(self, number: int, *, opened_here: bool) -> IrohStream:
        stream = IrohStream(self, number, opened_here=opened_here)
        self._streams[opened_here, number] = stream
        return stream

    async def _watch(self) -> None:
        await self._outgoing.closed()
        self._lose("the connection was lost")

    async def _accept_forever(self) -> None:
        with contextlib.suppress(*BINDING_ERRORS):
            while True:
                self._spawn(self._introduce(await self._incoming.accept_uni()))
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
        def received() -> int:
            return sum(lane.stats().udp_rx_bytes for lane in (self._outgoing, self._incoming))

        with contextlib.suppress(MingaError, *BINDING_ERRORS):
            if await has_ended(lambda: self._send_abort(NO_STREAM), received, lambda: self.round_trip_s):
                self._process_ended = True
                self._lose("its process has ended")
        self._wondering = None

    async def _send_abort(self, number: int) -> None:
        with contextlib.suppress(MingaError, *BINDING_ERRORS):
            sender = await self.open_sender(HEADER.pack(ABORT, number), self._interrupt)
            await sender.finish()

    def _look_at_path(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._path_time < PATH_AGE_S:
            return
        self._path_time = now
        if (path := self._path()) is not None:
            kind: Literal["relayed", "direct"] = "relayed" if path.is_relay else "direct"
            self._facts = replace(self._facts, round_trip_s=max(path.rtt_ms, 0.5) / 1e3, path=kind)

    def _path(self) -> Any:
        """The path that carries what is sent; None if there is none at the moment.

        iroh selects one address of a peer for all connections to it, and one that has no path to that address goes on
        with its own, of which none is selected then.
        """
        return max(self._outgoing.paths(), key=lambda path: (path.is_selected, path.is_ip, -path.rtt_ms), default=None)

    def _measure(self) -> None:
        stats = [lane.stats() for lane in (self._outgoing, self._incoming)]
        sent, received = sum(s.udp_tx_bytes for s in stats), sum(s.udp_rx_bytes for s in stats)
        tcp_sent, tcp_received = self._tcp.traffic() if self._tcp is not None else (0, 0)
        self._facts = replace(self._facts, bytes_sent=sent + tcp_sent, bytes_received=received + tcp_received)
