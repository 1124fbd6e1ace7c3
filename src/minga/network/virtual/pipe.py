"""One direction of a simulated stream.

Theory of operation. Bytes go from the writer's queue through the sending host's uplink, the path with its latency and
losses, the receiving host's downlink and into the reader's buffer; nothing is copied before the reader takes it. The
writer may have at most a window of bytes under way that the reader has not taken yet. Bytes that the path holds back,
because it is cut or the receiver is stopped, go on in order when it opens again, as resent packets would.

A limited path comes first: bytes that it does not let through yet wait with the sender and take nothing of the uplink,
as with a transport that knows how fast it may send.

What waits is kept in lists, though it is taken from their front: most hold nothing or one entry, and a large swarm has
a hundred thousand of them, of which an empty `deque` would take 800 bytes each.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterable

from minga.core.errors import MingaError, ProtocolError
from minga.network.interface import Buffer
from minga.network.meta_bytes import fill, is_meta
from minga.network.virtual.link import LineDirection, Quantum, take_pieces
from minga.network.virtual.paths import ConnectionEnd

SEND_BUFFER_BYTES = 64 << 10
"""Bytes that a writer may leave unsent."""

PROMPT_S = 1e-4
"""Delays on the downlink below this are counted against its rate but not waited for."""


class Filling:
    """A buffer that is filled as bytes come, and what hears of them; `error` if it cannot take them."""

    __slots__ = ("context", "error", "filled", "target", "told")

    def __init__(
        self, target: memoryview, told: tuple[Callable[[int], None], ...], context: contextvars.Context
    ) -> None:
        self.target, self.told, self.context = target, told, context
        self.filled = 0
        self.error: Exception | None = None

    @property
    def missing(self) -> int:
        """How many bytes have not come."""
        return len(self.target) - self.filled


class Pipe:
    """Bytes on their way from the connection end `source` to the connection end `target`."""

    def __init__(self, source: ConnectionEnd, target: ConnectionEnd, announce: Callable[[], None] | None) -> None:
        self._source, self._target = source, target
        self._paths = source.paths
        self._window = source.paths.window_bytes
        self._limit = source.paths.limit(source.host, target.host)
        self._entry = self._limit or source.host.up
        self._announce = announce  # called when the first bytes arrive; None if the receiver knows the stream
        self.unsent = 0
        self.finished = False  # the writer called finish
        self.ended = False  # the end has reached the reader
        self.write_error: Callable[[], MingaError] | None = None
        self.read_error: Callable[[], MingaError] | None = None
        self._queue: list[memoryview] = []
        self._end_sent = False
        self._sent = self._credited = self._uncredited = 0
        self._last_arrival = 0.0
        self._admitted: list[Quantum] = []  # by the limit of the path
        self._wire: list[Quantum] = []
        self._arrived: list[Quantum] = []
        self._served: list[Quantum] = []
        self._held_on_wire = self._held_on_downlink = 0
        self._buffer: list[memoryview] = []
        self._filling: Filling | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    # ---- the writer's end

    def put(self, data: Buffer) -> None:
        """Queue bytes, which the caller must not change afterwards, or meta ones."""
        self._queue.append(memoryview(data))
        self.unsent += len(data)
        self._entry.offer(self)

    def finish(self) -> None:
        """Queue the end of the stream."""
        if not self.finished:
            self.finished = True
            self._entry.offer(self)

    async def wait_writable(self) -> None:
        """Wait until some bytes left, or writing failed."""
        self._writer = self._paths.clock.loop.create_future()
        await self._writer

    def fail_writer(self, error: Callable[[], MingaError]) -> None:
        """Make pending and later writes raise `error()`; unsent bytes are dropped."""
        if self.write_error is None:
            self.write_error = error
            self._queue.clear()
            self._admitted.clear()
            self.unsent = 0
            _wake(self._writer)

    # ---- the reader's end

    def pop(self, max_bytes: int) -> bytes:
        """Take up to `max_bytes` of what is there: b"" if nothing is, zeros for what is meta."""
        if not self._buffer:
            return b""
        piece = self._buffer[0]
        if len(piece) > max_bytes:
            self._buffer[0] = piece[max_bytes:]
            piece = piece[:max_bytes]
        else:
            self._buffer.pop(0)
        self._consumed(len(piece))
        return bytes(len(piece)) if is_meta(piece) else bytes(piece)

    def fill(self, target: memoryview, told: Iterable[Callable[[int], None]]) -> Filling:
        """Move what is there to the front of `target`, and until it is full or given up whatever comes, when it comes.

        Each of `told` is called with the number of bytes, in the context of the caller. Raises `ProtocolError` if they
        are meta and `target` is not; what goes wrong later is the `error` of what is returned.
        """
        filling = self._filling = Filling(target, tuple(told), contextvars.copy_context())
        self._pour(filling)
        return filling

    def stop_filling(self) -> None:
        """Leave what comes in the buffer from now on."""
        self._filling = None

    def _pour(self, filling: Filling) -> None:
        target, filled = filling.target, filling.filled
        while self._buffer and filled < len(target):
            piece = self._buffer.pop(0)
            if len(piece) > (room := len(target) - filled):
                self._buffer.insert(0, piece[room:])
                piece = piece[:room]
            try:
                fill(target[filled : filled + len(piece)], piece)
            except ValueError as error:
                raise ProtocolError(str(error), peer=self._source.host.peer_id) from error
            filled += len(piece)
        told, filling.filled = filled - filling.filled, filled
        if filled == len(target):
            self._filling = None
        if told:
            self._consumed(told)
            for tell in filling.told:
                filling.context.run(tell, told)

    async def wait_readable(self) -> None:
        """Wait until bytes or the end came, or reading failed."""
        self._reader = self._paths.clock.loop.create_future()
        await self._reader

    def fail_reader(self, error: Callable[[], MingaError], *, drop: bool) -> None:
        """Make reads raise `error()`, after what was buffered or, with `drop`, at once."""
        if drop:
            self._buffer.clear()
        if self.read_error is None and (drop or not self.ended):
            self.read_error = error
            for stage in (self._wire, self._arrived, self._served):
                stage.clear()
            _wake(self._reader)

    # ---- under way

    def flush(self) -> None:
        """The path is open again: let through what was held back."""
        on_downlink, self._held_on_downlink = self._held_on_downlink, 0
        on_wire, self._held_on_wire = self._held_on_wire, 0
        for _ in range(on_downlink):
            self._deliver()
        for _ in range(on_wire):
            self._arrive()
        self._source.host.up.offer(self)
        self._entry.offer(self)

    def has_more(self, link: LineDirection) -> bool:
        """Whether `link` should ask again."""
        if link is self._target.host.down:
            return bool(self._arrived)
        if link is not self._entry:
            return bool(self._admitted)
        return bool(self._queue) or (self.finished and not self._end_sent)

    def take(self, link: LineDirection, max_bytes: int) -> Quantum | None:
        """The next quantum for the limit of the path, the uplink of the source or the downlink of the target."""
        if link is self._target.host.down:
            return _take_together(self._arrived, max_bytes) if self._arrived else None
        if self.write_error is not None or not self._paths.may_leave(self._source.host, self._target.host):
            return None
        if link is not self._entry:
            return _take_together(self._admitted, max_bytes) if self._admitted else None
        if self._end_sent:
            return None
        room = min(max_bytes, self._window - (self._sent - self._credited))
        pieces, size = take_pieces(self._queue, room)
        self._sent += size
        self._end_sent = self.finished and not self._queue
        return Quantum(pieces, size, self._end_sent) if pieces or self._end_sent else None

    def forward(self, link: LineDirection, quantum: Quantum, when: float) -> None:
        """Let a quantum go on: to the uplink, over the path, or to the reader."""
        if link is self._target.host.down:
            self._served.append(quantum)
            if when - self._paths.clock.now() < PROMPT_S:
                self._deliver()
            else:
                self._paths.clock.at(when, self._deliver)
        elif link is self._limit:
            self._paths.clock.at(when, self._admit, quantum)
        else:
            self._leave(quantum, when)

    def _admit(self, quantum: Quantum) -> None:
        if self.write_error is None:
            self._admitted.append(quantum)
            self._source.host.up.offer(self)

    def _leave(self, quantum: Quantum, when: float) -> None:
        """It will have left the uplink at `when`."""
        self._source.bytes_sent += quantum.size
        self.unsent -= quantum.size
        if self.unsent <= SEND_BUFFER_BYTES:
            _wake(self._writer)
        arrival = when + self._paths.travel_s(self._source.host, self._target.host, quantum.size)
        self._last_arrival = max(arrival, self._last_arrival)
        self._wire.append(quantum)
        self._paths.clock.at(self._last_arrival, self._arrive)

    def _arrive(self) -> None:
        if not self._paths.is_open(self._source.host, self._target.host):
            self._held_on_wire += 1
        elif self.read_error is not None:
            self._wire.clear()
        elif self._wire:
            quantum, down = self._wire.pop(0), self._target.host.down
            if self._arrived or not down.pass_on(self, quantum):
                self._arrived.append(quantum)
                down.offer(self)

    def _deliver(self) -> None:
        if self._target.host.stalled:
            self._held_on_downlink += 1
            return
        if not self._served or self._target.host.gone:
            return
        quantum = self._served.pop(0)
        self._buffer.extend(quantum.pieces)
        self._target.bytes_received += quantum.size
        self.ended = quantum.end
        self._paths.record(self._source.host, self._target.host, quantum)
        if self._announce is not None:
            announce, self._announce = self._announce, None
            announce()
        filling = self._filling
        if filling is not None:  # the reader would only go back to sleep
            try:
                self._pour(filling)
            except Exception as error:  # it is for the reader
                filling.error, self._filling = error, None
            if self._filling is not None and not self.ended:
                return
        _wake(self._reader)

    def _consumed(self, size: int) -> None:
        # Credit goes back in quarters of a window: one small packet now and then, as QUIC does.
        self._uncredited += size
        if self._uncredited >= self._window // 4:
            credit, self._uncredited = self._uncredited, 0
            self._paths.signal(self._target.host, self._source.host, lambda: self._credit(credit))

    def _credit(self, size: int) -> None:
        self._credited += size
        self._entry.offer(self)


def _take_together(queue: list[Quantum], max_bytes: int) -> Quantum:
    """Up to `max_bytes` from the front of `queue`: several small ones together, or they would get less."""
    taken = queue.pop(0)
    while queue and taken.size < max_bytes:
        following = queue.pop(0)
        taken = Quantum(taken.pieces + following.pieces, taken.size + following.size, following.end)
    if taken.size > max_bytes:
        taken, rest = taken.split(max_bytes)
        queue.insert(0, rest)
    return taken


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
