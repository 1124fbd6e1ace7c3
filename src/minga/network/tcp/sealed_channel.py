"""One TCP connection whose bytes are sealed, driven by the event loop.

Theory of operation. Two peers agreed on keys (`greeting.py`), and seal what follows (`sealed_records.py`). The
transport of the event loop reads into the opener's buffer, and what is opened goes straight into the reader's memory.
What is sent is sealed into one buffer that all connections of a thread share, and the system takes it from there at
once, or else the transport keeps the rest. So one system call moves up to `PIECE_BYTES`, each byte is copied by the
system alone, and it works on every kind of event loop.

Nothing here holds the loop for longer than one piece takes, some 300 µs. Bytes that arrive while no task reads stay in
the kernel once the opener's buffer is full; that is the back-pressure. A channel has a buffer of a few KiB, and one of
a piece only from the first large read of a stream to the stream's end.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
from collections.abc import Callable
from typing import Final

from minga.network.interrupt import Interrupt
from minga.network.tcp.sealed_records import (
    MOST_RECORD_BYTES,
    OVERHEAD_BYTES,
    ForgedRecordError,
    RecordOpener,
    RecordSealer,
    SealingRoom,
    sealed_bytes,
)

# ---- How much has to come over a socket before its reader is woken.
#
# Theory of operation. Over a slow link bytes arrive packet by packet. A reader that is woken for each packet spends
# more time on waking than on the bytes: with many slow connections that is most of the cost of a round. So while a
# large frame is being filled the kernel waits (by `SO_RCVLOWAT`) for about as much as arrives in `WAKE_S` seconds, but
# never for more than is certain to come. If the link gets slower the reader is woken for fewer bytes.
#
# Where the option does not exist every packet wakes the reader, and all else stays the same.


WAKE_S = 0.25
SLOWER_S = 0.5
"""If what was waited for does not come within this time, the reader takes what there is."""

LEAST_BYTES, MOST_BYTES = 4 << 10, 64 << 10
"""It is not worth while to wait for less; and more at once is not faster."""

FAST_RATE = 2e6
"""At this rate in bytes per second they arrive in large lots anyway."""


class LowWater:
    """The low-water mark of the socket of a transport."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._mark, self._rate = 1, 0.0
        self._woken_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, missing: int) -> None:
        """A frame is waited for of which `missing` bytes at least have to come."""
        self._woken_s = self._loop.time()
        if missing >= LEAST_BYTES and self._rate < FAST_RATE:
            self._timer = self._loop.call_later(SLOWER_S, self._look)
            self._set(missing)

    def came(self, size: int, missing: int) -> None:
        """`size` bytes came; `missing` ones at least are to come yet."""
        now = self._loop.time()
        self._rate = size / max(now - self._woken_s, 1e-4)
        self._woken_s = now
        if self._timer is not None:
            self._set(missing)

    def end(self) -> None:
        """Whatever comes next wakes the reader."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._set(0)

    def _set(self, missing: int) -> None:
        mark = min(int(WAKE_S * self._rate), MOST_BYTES, missing)
        mark = mark if mark >= LEAST_BYTES and self._rate < FAST_RATE else 1
        if mark == self._mark or (mark > 1 and self._mark <= mark <= 2 * self._mark):
            return
        self._mark = mark
        try:
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, mark)
        except OSError:  # closed by now, or a system without this option
            self._mark = 1

    def _look(self) -> None:
        """Take what there is if the link got slower."""
        wait_s = self._woken_s + SLOWER_S - self._loop.time()
        if wait_s <= 0.0:
            wait_s = SLOWER_S
            self._set(0)
        self._timer = self._loop.call_later(wait_s, self._look)


# ---- Progress of bytes that arrived sealed, before they can be opened.


class ReadBuffer:
    """Memory that is being filled; `progress` also counts bytes that cannot be opened yet, `placed` does not.

    A record of 128 KiB is opened when all of it is there, which over a slow link takes seconds.
    """

    def __init__(
        self,
        target: memoryview,
        progress: Callable[[int], None] | None,
        placed: Callable[[int], None] | None = None,
    ) -> None:
        self.rest = target
        self._size, self._progress, self._placed = target.nbytes, progress, placed
        self._came = self._told = 0

    def filled(self, size: int, *, came: int = 0) -> None:
        """Note further decrypted bytes, and the encrypted ones that arrived."""
        self.rest = self.rest[size:]
        if self._placed is not None and size:
            self._placed(size)
        self._came += came
        told = max(self._size - self.rest.nbytes, min(self._came, self._size))
        if self._progress is not None and told > self._told:
            self._progress(told - self._told)
            self._told = told


LEAST_PIECE_BYTES, PIECE_BYTES = 64 << 10, 512 << 10
"""How much is sent at once: twice as much as before if the system took all of it, else half as much. So over a slow
link urgent messages wait behind a small piece, and a fast one costs few calls; more is not faster."""

HIGH_WATER_BYTES = 64 << 10
"""Bytes that may wait here for the kernel before a writer has to; over a slow link urgent messages wait behind them."""

TURN_BYTES = 256 << 10
"""How much a writer that never has to wait may send before others have their turn."""

IDLE_BUFFER_BYTES, READ_AHEAD_BYTES = 4096, 64 << 10

WIDE_BUFFER_BYTES = 3 * MOST_RECORD_BYTES + (4 << 10)
"""Room for what one call reads: whole records of the full size, and small ones before them. So little has begun that is
not all there, and has to be moved."""

MAX_UNSENT_BYTES = 4 << 20
"""Small answers that may pile up while the other side does not read; an honest one never asks for that many."""

_ENDED_THERE: Final = "the other side closed the connection"
_ABORT_AT_ONCE = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
_OUTGOING: Final = SealingRoom(sealed_bytes(PIECE_BYTES) + MOST_RECORD_BYTES)


class SealedChannel(asyncio.BufferedProtocol):
    """A byte channel with one reader and one writer at a time, over a transport whose protocol it is to be.

    `on_readable` is called when bytes arrive for which no task waits, `on_lost` once when the connection is gone.
    """

    def __init__(self, transport: asyncio.Transport, sealer: RecordSealer, opener: RecordOpener) -> None:
        self._transport, self._sealer, self._opener = transport, sealer, opener
        self.on_readable: Callable[[], None] | None = None
        self.on_lost: Callable[[], None] | None = None
        self.lost: str | None = None
        """Why the connection is gone; None while it is not."""
        self.ended_there = False
        """Whether it is gone because the other side, or the system there, closed it."""
        self.bytes_sent = self.bytes_received = 0
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._heard_s = self._waiting_since_s = loop.time()
        self._low_water = LowWater(transport)
        # What a writer waits for is that all is gone: then the memory for sealing is free again.
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES, low=0)
        self._paused = self._full = False
        self._piece_bytes, self._turn_bytes = LEAST_PIECE_BYTES, 0
        self._filling: ReadBuffer | None = None
        self._reading: asyncio.Future[None] | None = None
        self._writing: asyncio.Future[None] | None = None

    @property
    def stalled_s(self) -> float:
        """Seconds for which a reader has been waiting without a byte from the other side."""
        if self._reading is None and self._writing is None:
            return 0.0
        return self._loop.time() - max(self._heard_s, self._waiting_since_s)

    def use(self, *, busy: bool) -> None:
        """A stream begins, or ended: free the memory that large amounts take."""
        self._opener.begin()
        if self._paused or self._opener.capacity > IDLE_BUFFER_BYTES:
            self._opener.resize(IDLE_BUFFER_BYTES + (0 if busy else self._opener.sealed))
        self._heard_s = self._loop.time()
        if not busy:  # else its loss would go unnoticed
            self._resume()

    # ---- reading

    def take(self, target: memoryview) -> int:
        """Move what is there into `target`; returns the number of bytes, 0 if there are none or the end was lost."""
        try:
            got = self._opener.take(target)
        except ForgedRecordError as error:
            self._lose(str(error))
            return 0
        if self._paused:
            self._resume()
        return got

    @property
    def arrived_bytes(self) -> int:
        """How many bytes may be there to `take`."""
        return self._opener.pending

    @property
    def is_at_end(self) -> bool:
        """Whether all was taken that the other side has to say to this stream."""
        return self._opener.is_at_end

    async def fill(
        self,
        target: memoryview,
        interrupt: Interrupt,
        progress: Callable[[int], None] | None,
        filled: Callable[[int], None] | None = None,
    ) -> int:
        """Fill `target`; returns how much of it was filled: all, but for the end and the loss of the connection.

        The bytes are put there as they come, without waking the caller for each piece; see `Stream.read_into`.
        """
        opener = self._opener
        if target.nbytes > IDLE_BUFFER_BYTES and opener.capacity < WIDE_BUFFER_BYTES:
            opener.resize(WIDE_BUFFER_BYTES)
        filling = ReadBuffer(target, progress, filled)
        filling.filled(self.take(target))
        if not filling.rest.nbytes or opener.is_at_end or self.lost is not None:
            return target.nbytes - filling.rest.nbytes
        self._filling = filling
        self._low_water.begin(filling.rest.nbytes - opener.sealed)
        try:
            await self.wait_readable(interrupt)
            return target.nbytes - filling.rest.nbytes
        finally:
            self._filling = None
            self._low_water.end()

    async def wait_readable(self, interrupt: Interrupt) -> None:
        """Wait until something arrived, or the connection is lost."""
        if self.lost is not None:
            return
        self._reading, self._waiting_since_s = self._loop.create_future(), self._loop.time()
        try:
            await interrupt.wait(self._reading)
        finally:
            self._reading = None

    # ---- writing

    async def send(self, first: bytes, rest: memoryview, interrupt: Interrupt, *, is_last: bool = False) -> None:
        """Send `first` (a few KiB) and all of `rest` (contiguous bytes), unless the connection is or gets lost.
        `is_last`: the other side is told that nothing more comes.
        """
        await self._wait_writable(interrupt)
        sent = 0
        while self.lost is None:
            piece = rest[sent : sent + self._piece_bytes]
            first, sent, head = b"", sent + piece.nbytes, first
            is_over = sent == rest.nbytes
            self._seal(head, piece, is_last=is_last and is_over)
            if is_over:
                break
            await self._wait_writable(interrupt)
        self._turn_bytes += sent
        if self._turn_bytes > TURN_BYTES:
            self._turn_bytes = 0
            await asyncio.sleep(0)
            interrupt.check()

    def put(self, data: bytes) -> None:
        """Send a few bytes without waiting."""
        self._seal(data, memoryview(b""))

    def abort(self) -> None:
        """Close at once and drop what was not delivered; the other side sees a reset."""
        abort_at_once(self._transport)
        self._lose("the connection was closed")

    # ---- called by the event loop

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """See `asyncio`."""
        if self._opener.is_full:
            # A loop that reads ahead (Windows) hands over the rest of what it has even after it was asked to pause.
            self._opener.resize(self._opener.capacity + READ_AHEAD_BYTES)
        return self._opener.room()

    def buffer_updated(self, size: int) -> None:
        """See `asyncio`."""
        self.bytes_received += size
        self._heard_s = self._loop.time()
        opener = self._opener
        opener.came(size)
        if self._filling is not None:
            self._filling.filled(self.take(self._filling.rest), came=size)
            if not self._filling.rest.nbytes or opener.is_at_end:
                self._wake()
            else:
                self._low_water.came(size, self._filling.rest.nbytes - opener.sealed)
        elif self._reading is not None:
            self._wake()
        elif self.on_readable is not None:
            self.on_readable()
        if opener.is_full and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def eof_received(self) -> None:
        """See `asyncio`; what stops sending here will not listen either, so nobody waits until it takes the rest."""
        self.ended_there = self.lost is None
        self._lose(_ENDED_THERE)

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio`."""
        self.ended_there = self.ended_there or self.lost is None
        self._lose(str(error) if error else _ENDED_THERE)

    def pause_writing(self) -> None:
        """See `asyncio`."""
        self._full = True

    def resume_writing(self) -> None:
        """See `asyncio`."""
        self._full = False
        if self._writing is not None and not self._writing.done():
            self._writing.set_result(None)

    # ---- inner workings

    @property
    def _is_breaking(self) -> bool:
        """Whether a write failed; the event loop tells why in its next turn, and minds what is written until then."""
        return self._transport.is_closing()

    async def _wait_writable(self, interrupt: Interrupt) -> None:
        while (self._full or self._is_breaking) and self.lost is None:
            self._writing, self._waiting_since_s = self._loop.create_future(), self._loop.time()
            try:
                await interrupt.wait(self._writing)
            finally:
                self._writing = None

    def _seal(self, first: bytes, rest: memoryview, *, is_last: bool = False) -> None:
        """Hand over the records of both, and of the end."""
        transport, sealer = self._transport, self._sealer
        if self.lost is not None or self._is_breaking:
            return
        size = sealed_bytes(len(first)) + sealed_bytes(rest.nbytes) + (OVERHEAD_BYTES if is_last else 0)
        is_first = not transport.get_write_buffer_size()
        room = _OUTGOING.room if is_first else memoryview(bytearray(size))
        used = sealer.seal(memoryview(first), room)
        used += sealer.seal(rest, room[used:])
        if is_last:
            sealer.seal_end(room[used:])
        self.bytes_sent += size
        transport.write(room[:size])
        waiting = transport.get_write_buffer_size()
        if not waiting:
            if size > self._piece_bytes:
                self._piece_bytes = min(2 * self._piece_bytes, PIECE_BYTES)
            return
        self._piece_bytes = max(self._piece_bytes // 2, LEAST_PIECE_BYTES)
        if is_first:
            _OUTGOING.leave()
        if waiting > MAX_UNSENT_BYTES:
            self._lose("it does not read")

    def _resume(self) -> None:
        if self._paused and not self._opener.is_full and self.lost is None:
            self._paused = False
            self._transport.resume_reading()

    def _wake(self) -> None:
        if self._reading is not None and not self._reading.done():
            self._reading.set_result(None)

    def _lose(self, why: str) -> None:
        if self.lost is not None:
            return
        self.lost = why
        self._transport.abort()
        self._wake()
        self.resume_writing()
        if self.on_lost is not None:
            self.on_lost()
        self.on_lost = self.on_readable = None  # they know this channel, and its buffers are large


def abort_at_once(transport: asyncio.Transport) -> None:
    """Close a connection and drop what was not delivered; the other side sees a reset."""
    with contextlib.suppress(OSError, AttributeError):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT_AT_ONCE)
    transport.abort()
