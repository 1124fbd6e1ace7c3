"""Carries all streams of small messages between two peers, in both directions, over one stream."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from minga.core.aio import end, wake
from minga.core.errors import ClosedError, MingaError, ProtocolError, RemoteError, UnreachableError
from minga.network.backlog import Backlog
from minga.network.interface import Buffer, PeerId, Stream
from minga.network.meta_bytes import byte_view, fill
from minga.network.rpc.keepalive import LEAST_TICKS, MOST_TICKS, KeepaliveTicker, LastHeard

# ---- The bytes on a carrier: frames that say to which stream they belong.
#
# A frame is one byte of kind, four bytes of number, two bytes of size (big-endian), and for the first two kinds the
# body:
#
#     DATA     `size` bytes of stream `number`; the first of them opens it
#     LAST     the same, and nothing more comes in this direction
#     RESET    both directions of the stream are aborted
#     CREDIT   `size` KiB of the stream were read, and as many may follow
#     PULSE    still alive, nothing to say; the number is that of ticks until the next one
#
# Streams that the opener of the carrier opens have even numbers, those of the other side odd ones, which ascend in the
# order of their first frames: a lower number than the newest is that of a stream which has ended.


HEADER = struct.Struct(">BIH")
DATA, LAST, RESET, CREDIT, PULSE = range(5)

PIECE_BYTES = 1 << 14
"""Largest body of a frame: so much goes before what another stream has to say."""

WINDOW_BYTES = 1 << 20
"""How many bytes of a stream may be under way or wait to be read: the largest message needs no credit in between."""

CREDIT_BYTES = 1 << 10
"""The unit of a credit."""


class SubstreamFrame(NamedTuple):
    """A frame that came; `size` is that of the body, but for CREDIT."""

    kind: int
    number: int
    size: int
    body: memoryview


def pack(kind: int, number: int, size: int = 0) -> bytearray:
    """The header of a frame."""
    return bytearray(HEADER.pack(kind, number, size))


class FrameParser:
    """Makes frames of bytes that come in pieces of any size."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[SubstreamFrame]:
        """The frames that are complete now. Raises `ValueError` for what is none."""
        held = self._rest + data if self._rest else data
        view, at, end = memoryview(held), 0, len(held)
        while end - at >= HEADER.size:
            kind, number, size = HEADER.unpack_from(held, at)
            body_bytes = size if kind in (DATA, LAST) else 0
            if kind > PULSE or body_bytes > PIECE_BYTES:
                raise ValueError(f"a frame of kind {kind} and {size} bytes on a carrier")
            begin = at + HEADER.size
            if end - begin < body_bytes:
                break
            at = begin + body_bytes
            yield SubstreamFrame(kind, number, size, view[begin:at])
        self._rest = held[at:]


# ---- What waits to be written to a carrier: as much as there is goes in one write, while the next batch gathers.
#
# Theory of operation. To hand bytes to the transport costs as much for one message as for a hundred, and far more than
# the message. So streams never write themselves. Frames that are put in the same turn of the loop, or while a write is
# under way, leave together. What nobody waits for is put `lazily` and leaves with whatever comes next, or after
# `LAZY_S`.


LAZY_S = 0.02
"""Pushes wait for the end of the one before: with 0.1 s the steps of peers far from each other came later."""
MOST_WAITING_BYTES = 1 << 16
"""Streams wait before they put more while so many bytes have not left."""

MOST_WAITING_PIECES = 1 << 15
"""If more headers and bodies than that wait, the other side keeps asking and reads nothing. Streams, which wait for
room, put half of them at most; the rest are ends and credits, of which an honest peer causes a few for each stream that
it has open.
"""


class Outbox:
    """Writes to `stream` until that fails."""

    def __init__(self, stream: Stream, clockwork: KeepaliveTicker) -> None:
        self.written_tick = clockwork.tick
        """That of the last write."""
        self._stream, self._clockwork = stream, clockwork
        self.batch = 0
        """The number of the next write, which takes along all that waits."""
        self._waiting: list[Buffer] = []
        self._waiting_bytes = 0
        self._is_due = self._is_writing = False
        self._due: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._line = asyncio.Lock()  # who waits for room does so one after the other
        self._room: asyncio.Future[None] | None = None
        self._error: Callable[[], MingaError] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and no write is under way."""
        return not (self._waiting or self._is_writing)

    @property
    def overflows(self) -> bool:
        """Whether more waits than an honest peer can cause."""
        return len(self._waiting) > MOST_WAITING_PIECES

    def put(self, *frames: Buffer, lazily: bool = False) -> None:
        """Let frames leave. Their bytes must not change any more."""
        if self._error is not None:
            return
        self._waiting.extend(frames)
        self._waiting_bytes += sum(map(len, frames))
        if not lazily:
            self._wake()
        elif self._timer is None and not self._is_due:
            self._timer = asyncio.get_running_loop().call_later(LAZY_S, self._be_due)

    async def room(self) -> None:
        """Wait until there is room for more. Raises what the carrier was lost by.

        Whoever has had its turn goes to the end of the line, so that a stream that never pauses holds up no other.
        """
        if self._is_full:
            async with self._line:
                while self._is_full:
                    self._room = asyncio.get_running_loop().create_future()
                    await self._room
        if self._error is not None:
            raise self._error()

    def fail(self, error: Callable[[], MingaError]) -> None:
        """Write nothing more; those that wait for room get the error."""
        if self._error is None:
            self._error = error
            self._waiting.clear()
            wake(self._room)
            if self._timer is not None:
                self._timer.cancel()

    async def run(self) -> None:
        """Write whatever is put. Raises `UnreachableError` or `ClosedError` when the stream is lost."""
        while True:
            if not self._is_due:
                self._due = asyncio.get_running_loop().create_future()
                await self._due
            frames, self._waiting, self._waiting_bytes = self._waiting, [], 0
            self.batch += 1
            self._is_due, self._is_writing = False, True
            await self._stream.write(b"".join(frames))
            self._is_writing = False
            self.written_tick = self._clockwork.tick
            wake(self._room)

    @property
    def _is_full(self) -> bool:
        return self._waiting_bytes >= MOST_WAITING_BYTES and self._error is None

    def _wake(self) -> None:
        if not self._is_due:
            self._is_due = True
            if self._due is not None and not self._due.done():
                self._due.set_result(None)

    def _be_due(self) -> None:
        self._timer = None
        if self._waiting:
            self._wake()


# ---- One stream on a carrier; it behaves like a stream of the connection itself.


SMALL_BYTES = PIECE_BYTES // 4
"""Unread pieces of fewer bytes are copied together."""

MakeError = Callable[[], MingaError]


class Substream(Stream):
    """A stream of a carrier. One that is opened here gets its `number` with its first frame, which other streams may
    overtake.
    """

    def __init__(self, carrier: Multiplexer, number: int | None = None) -> None:
        self.carrier, self.number = carrier, number
        self._room = WINDOW_BYTES
        self._pieces: deque[memoryview] = deque()
        self._taken_bytes = 0
        self._open_bytes = self._waiting_bytes = 0
        """How much of the window was used and not given back so far, and how much of that waits to be read."""
        self._finished = self._ended = self._is_over = False
        self._newest, self._newest_batch = bytearray(), -1  # the header of the last frame, and with which write it goes
        self._error: MakeError | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    # ---- the interface

    async def write(self, data: Buffer) -> None:
        """Send all of `data`; see the interface."""
        view = byte_view(data)
        if self._finished:
            raise ValueError("write after finish")
        self._check()
        while True:
            await self.carrier.outbox.room()
            self._check()
            if not self._room:
                self._writer = asyncio.get_running_loop().create_future()
                await self._writer
                self._check()
                continue
            piece = view[: min(PIECE_BYTES, self._room)]
            if piece.nbytes:
                self._room -= piece.nbytes
                self._newest, self._newest_batch = self._pack(DATA, piece.nbytes), self.carrier.outbox.batch
                self.carrier.outbox.put(self._newest, bytes(piece))
            view = view[piece.nbytes :]
            if not view.nbytes:
                return

    async def finish(self) -> None:
        """Say that nothing more will be written; see the interface. A frame that has not left yet says so itself; alone
        that is no news in a hurry.
        """
        self._check()
        if not self._finished:
            self._finished = True
            if self._newest_batch == self.carrier.outbox.batch:
                self._newest[0] = LAST
            else:
                self.carrier.outbox.put(self._pack(LAST), lazily=True)
            self._end_if_over()

    async def read(self, max_bytes: int) -> bytes:
        """Return what is there; see the interface."""
        while not self._pieces:
            if not await self._more():
                return b""
        return bytes(self._pop(max_bytes))

    async def read_into(
        self,
        target: memoryview,
        progress: Callable[[int], None] | None = None,
        filled: Callable[[int], None] | None = None,
    ) -> None:
        """Fill `target` completely; see the interface."""
        view = byte_view(target)
        while view.nbytes:
            if not self._pieces and not await self._more():
                raise ProtocolError("the stream ended early", peer=self.carrier.peer)
            while self._pieces and view.nbytes:
                piece = self._pop(view.nbytes)
                fill(view[: len(piece)], piece)
                view = view[len(piece) :]
                if progress is not None:
                    progress(len(piece))
                if filled is not None:
                    filled(len(piece))

    async def reset(self) -> None:
        """Abort both directions; see the interface."""
        self.drop()

    # ---- for the multiplexer and the backlog

    def drop(self) -> None:
        """Reset it at once, and let go of what waits to be read."""
        peer = self.carrier.peer
        if self.number is not None and self._error is None and not self._is_over:
            self.carrier.outbox.put(self._pack(RESET))
        self.fail(lambda: UnreachableError("this side reset the stream", peer=peer), drop=True)

    @property
    def has_ended(self) -> bool:
        """Whether the other side finished, and all that it sent is here."""
        return self._ended

    def came(self, body: memoryview, *, is_last: bool) -> None:
        """Bytes of this stream came. Raises `ValueError` if they are more than may come."""
        if self._error is not None:
            return
        self._open_bytes += len(body)
        if self._ended or self._open_bytes > WINDOW_BYTES:
            raise ValueError("more bytes on a carrier than its stream may carry")
        self._ended = is_last
        if body:
            self._keep(body)
            self._note_waiting(len(body))  # which drops it all where there is no room
        wake(self._reader)
        self._end_if_over()

    def may_write(self, size: int) -> None:
        """The other side has read so many bytes."""
        self._room = min(self._room + size, WINDOW_BYTES)
        wake(self._writer)

    def fail(self, error: MakeError, *, drop: bool) -> None:
        """Let every later operation raise `error()`, reads after what is buffered unless `drop`."""
        if drop:
            self._pieces.clear()
            self._note_waiting(-self._waiting_bytes)
        if self._error is None:
            self._error = error
            if drop:
                self._ended = False
            wake(self._reader)
            wake(self._writer)
            self._over()

    # ---- inner workings

    def _pack(self, kind: int, size: int = 0) -> bytearray:
        """The header of a frame, which must be put before another stream puts one."""
        if self.number is None:
            self.number = self.carrier.give_number(self)
        return pack(kind, self.number, size)

    def _keep(self, body: memoryview) -> None:
        """Hold what was not read yet. A small piece is copied, to the end of the small ones before it: else it would
        cost an object of its own, and keep alive all that came with it.
        """
        if len(body) >= SMALL_BYTES:
            self._pieces.append(body)
        elif self._pieces and len(self._pieces[-1]) < PIECE_BYTES:
            self._pieces[-1] = memoryview(b"".join((self._pieces[-1], body)))
        else:
            self._pieces.append(memoryview(bytes(body)))

    def _note_waiting(self, more: int) -> None:
        self._waiting_bytes += more
        self.carrier.backlog.note(self.carrier.peer, self, self._waiting_bytes)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error()

    async def _more(self) -> bool:
        """Wait for bytes; False at the end of the stream."""
        if self._ended:
            return False
        self._check()
        self._reader = asyncio.get_running_loop().create_future()
        await self._reader
        return True

    def _pop(self, most: int) -> memoryview:
        """The next of the bytes that wait here. Credit for them is given in quarters of a window: few small frames."""
        piece = self._pieces.popleft()
        if len(piece) > most:
            self._pieces.appendleft(piece[most:])
            piece = piece[:most]
        self._note_waiting(-len(piece))
        self._taken_bytes += len(piece)
        if self._taken_bytes >= WINDOW_BYTES // 4 and not self._ended:
            units = self._taken_bytes // CREDIT_BYTES
            self._taken_bytes -= units * CREDIT_BYTES
            self._open_bytes -= units * CREDIT_BYTES
            self.carrier.outbox.put(self._pack(CREDIT, units))
        return piece

    def _end_if_over(self) -> None:
        if self._finished and self._ended:
            self._over()

    def _over(self) -> None:
        if not self._is_over:
            self._is_over = True
            self.carrier.forget(self)


READ_BYTES = 1 << 15


class Multiplexer:
    """The streams with `peer` over the stream `carrier`, which was opened here or there, and the signs of life that
    they share. What they have that waits to be read is in the `backlog`; `last_heard` belongs to all streams with this
    peer; `arrived` is told of each stream that the other side opens.

    A pulse says which pause its sender needs, and both make the longer of the two. What a peer needs shrinks by a tick
    with each pulse at most, so that the other side, which follows, is never taken for silent.
    """

    def __init__(
        self,
        carrier: Stream,
        peer: PeerId,
        clockwork: KeepaliveTicker,
        last_heard: LastHeard,
        backlog: Backlog,
        arrived: Callable[[Substream], None],
        *,
        opened_here: bool,
    ) -> None:
        self.peer, self.backlog = peer, backlog
        self.outbox = Outbox(carrier, clockwork)
        self.heard_tick = clockwork.tick
        self._carrier, self._arrived = carrier, arrived
        self._clockwork, self._last_heard = clockwork, last_heard
        self._need_ticks = self._far_need_ticks = LEAST_TICKS
        self._speaking = 0  # how many streams may still say something here
        self._streams: dict[int, Substream] = {}
        self._unheard: dict[Substream, None] = {}  # those that the other side does not know of yet
        self._parity = 0 if opened_here else 1
        self._next, self._newest = self._parity + 2, -1
        self._error: Callable[[], MingaError] | None = None
        self._resetting: asyncio.Task[None] | None = None

    @property
    def is_lost(self) -> bool:
        """Whether nothing can be opened on it any more."""
        return self._error is not None

    @property
    def is_idle(self) -> bool:
        """Whether no stream is open on it."""
        return not (self._streams or self._unheard)

    def open(self) -> Substream:
        """Open a stream. The other side learns of it with the first bytes. Raises `UnreachableError`."""
        if self._error is not None:
            raise self._error()
        stream = Substream(self)
        self._unheard[stream] = None
        return stream

    def give_number(self, stream: Substream) -> int:
        """Number a stream that was opened here, whose first frame leaves now."""
        del self._unheard[stream]
        number, self._next = self._next, self._next + 2
        self._streams[number] = stream
        return number

    @property
    def pause_ticks(self) -> int:
        """How many ticks either side may be quiet."""
        return max(self._need_ticks, self._far_need_ticks)

    def begin_speaking(self) -> None:
        """A stream is open in this direction: pulses are due while there is one."""
        self._speaking += 1
        if self._speaking == 1 and self._error is None:
            self._clockwork.add(self)

    def end_speaking(self) -> None:
        """One less is."""
        self._speaking -= 1
        if not self._speaking:
            self._clockwork.remove(self)

    def on_tick(self, tick: int) -> None:
        """Called by the clockwork: pulse if nothing was written for a while.

        The pause gets longer only where a pulse tells the other side so, which one behind other frames does too late.
        """
        if tick - self.outbox.written_tick >= self.pause_ticks and self.outbox.is_idle:
            self._need_ticks = max(self._clockwork.pause_ticks, self._need_ticks - 1)
            self.outbox.put(pack(PULSE, self._need_ticks))

    def give_up(self) -> None:
        """Reset the carrier, and so all streams on it: nothing gets through any more."""
        if self._resetting is None:
            self._resetting = asyncio.get_running_loop().create_task(self._carrier.reset())

    def forget(self, stream: Substream) -> None:
        """Both directions of a stream have ended."""
        if stream.number is None:
            del self._unheard[stream]
        else:
            del self._streams[stream.number]

    async def run(self) -> None:
        """Carry what comes and goes until the carrier is lost. Raises `ProtocolError` if the other side breaks the
        protocol.
        """
        writing = asyncio.get_running_loop().create_task(self._write())
        try:
            await self._read()
        except (UnreachableError, ClosedError) as error:
            self._lose(error)
        except ValueError as error:
            raise ProtocolError(str(error), peer=self.peer) from error
        finally:
            self._lose(UnreachableError("the carrier of small messages was closed"))
            await end(writing)
            await self._carrier.reset()

    async def _write(self) -> None:
        try:
            await self.outbox.run()
        except (UnreachableError, ClosedError) as error:
            self._lose(error)
            await self._carrier.reset()  # which ends the reading, too

    async def _read(self) -> None:
        parser = FrameParser()
        while data := await self._carrier.read(READ_BYTES):
            self.heard_tick = self._last_heard.frame_tick = self._clockwork.tick
            for frame in parser.feed(data):
                self._take(frame)
            if self.outbox.overflows:
                raise UnreachableError("the other side does not read what it asks for")

    def _take(self, frame: SubstreamFrame) -> None:
        kind, number, size, body = frame
        if kind == PULSE:
            if not LEAST_TICKS <= number <= MOST_TICKS:
                raise ValueError(f"pulses every {number} ticks")
            self._far_need_ticks = number
            return
        stream = self._streams.get(number)
        if stream is None:
            stream = self._begin(kind, number)
        if stream is None:
            return
        if kind == CREDIT:
            stream.may_write(size * CREDIT_BYTES)
        elif kind == RESET:
            peer = self.peer
            stream.fail(
                lambda: UnreachableError("the other side reset the stream", peer=peer), drop=not stream.has_ended
            )
        else:
            stream.came(body, is_last=kind == LAST)

    def _begin(self, kind: int, number: int) -> Substream | None:
        """The stream that the other side opens with this frame; None for a late word on one that has ended here."""
        if number % 2 == self._parity:
            if number >= self._next:
                raise ValueError("a frame for a stream that was never opened")
            return None
        if number <= self._newest or kind in (CREDIT, RESET):
            return None
        self._newest = number
        stream = self._streams[number] = Substream(self, number)
        self._arrived(stream)
        return stream

    def _lose(self, error: MingaError) -> None:
        if self._error is not None:
            return
        kind, peer = type(error), self.peer
        message = error.message if isinstance(error, RemoteError) else str(error)
        closed = kind is ClosedError

        def make() -> MingaError:
            return ClosedError(message) if closed else UnreachableError(message, peer=peer)

        self._error = make
        self._clockwork.remove(self)
        self.outbox.fail(make)
        for stream in [*self._streams.values(), *self._unheard]:
            stream.fail(make, drop=False)
