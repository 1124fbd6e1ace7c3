"""One TCP connection under TLS, driven by the event loop.

Theory of operation. The transport of the event loop reads into and writes from buffers here, a TLS object works on
these buffers, and decrypted bytes go straight into the reader's memory. So one system call moves `PIECE_BYTES`, and it
works on every kind of event loop; a TLS object on top of a socket makes three calls for each record of 16 KiB. Four
processes on two cores that exchange 384 MiB took 0.58 CPU seconds, as much as TLS sockets on the event loop and
blocking ones in threads. About 0.2 of these are AES and 0.22 the kernel's.

Nothing here holds the loop for longer than one piece takes, some 200 µs. Bytes that arrive while no task reads stay in
the kernel, up to one piece; that is the back-pressure. A channel has a buffer of a few KiB, and one of a piece only
from the first large read of a stream to the stream's end.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import sys
from collections.abc import Callable

from minga.network.interrupt import Interrupt
from minga.network.tcp.low_water import LowWater
from minga.network.tcp.read_buffer import ReadBuffer

PIECE_BYTES = 256 << 10
"""How much is moved at once; more is not faster."""

HIGH_WATER_BYTES = 64 << 10
"""Bytes that may wait here for the kernel before a writer has to; over a slow link urgent messages wait behind them."""

TURN_BYTES = 256 << 10
"""How much a writer that never has to wait may send before others have their turn."""

IDLE_BUFFER_BYTES = 4096

MAX_RECORD_BYTES = (16 << 10) + 256 + 5
"""The greatest size of 16 KiB under TLS."""

MAX_UNSENT_BYTES = 4 << 20
"""Answers to the other side's TLS that may pile up while it does not read; an honest one never asks for that many."""

_ABORT_AT_ONCE = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)


class TlsChannel(asyncio.BufferedProtocol):
    """A byte channel with one reader and one writer at a time. `secure` makes the TLS object from its two buffers.

    `on_readable` is called when bytes arrive for which no task waits, `on_lost` once when the connection is gone.
    """

    def __init__(self, secure: Callable[[ssl.MemoryBIO, ssl.MemoryBIO], ssl.SSLObject]) -> None:
        self.on_readable: Callable[[], None] | None = None
        self.on_lost: Callable[[], None] | None = None
        self.lost: str | None = None
        """Why the connection is gone; None while it is not."""
        self.ended_there = False
        """Whether it is gone because the other side, or the system there, closed it."""
        self.bytes_sent = self.bytes_received = 0
        loop = asyncio.get_running_loop()
        self._gone: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._heard_s = self._waiting_since_s = loop.time()
        self._arrived, self._unsent = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = secure(self._arrived, self._unsent)
        self._buffer = self._reading_into = self._idle_buffer = bytearray(IDLE_BUFFER_BYTES)
        self._transport: asyncio.Transport | None = None
        self._low_water = LowWater()
        self._paused = self._full = False
        self._turn_bytes = 0
        self._undecrypted_bytes = 0  # at most so many of those that came are of a record that is not complete
        self._filling: ReadBuffer | None = None
        self._reading: asyncio.Future[None] | None = None
        self._writing: asyncio.Future[None] | None = None

    @property
    def tls(self) -> ssl.SSLObject:
        """The TLS object, which knows the peer at the other end."""
        return self._tls

    @property
    def stalled_s(self) -> float:
        """Seconds for which a reader has been waiting without a byte from the other side."""
        if self._reading is None and self._writing is None:
            return 0.0
        return self._loop.time() - max(self._heard_s, self._waiting_since_s)

    async def handshake(self) -> None:
        """Shake hands. Raises `OSError` (`ssl.SSLError` is one) if TLS or the connection fails."""
        while self.lost is None:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                await self.wait_readable(None)
            else:
                self._flush()
                return
        raise ConnectionResetError(self.lost)

    def use(self, *, busy: bool) -> None:
        """A stream begins, or ended: free the memory that large amounts take."""
        self._buffer = self._idle_buffer
        self._heard_s = self._loop.time()
        if not busy:  # else its loss would go unnoticed
            self._resume()

    # ---- reading

    def take(self, target: memoryview) -> int:
        """Move what is there into `target`; returns the number of bytes, 0 if there are none or the end was lost."""
        got, room, read = 0, target.nbytes, self._tls.read
        try:
            while got < room:  # once for each record
                if not self.has_arrived:  # TLS would say so by an error, which takes ten times as long
                    self._resume()
                    break
                size = int(read(room - got, target[got:]))
                if not size:
                    self._lose("the other side closed the connection")
                    break
                got += size
        except ssl.SSLWantReadError:
            self._resume()
        except (ssl.SSLError, OSError) as error:
            self._lose(f"TLS failed: {error.strerror or error}")
        if self._unsent.pending:
            self._flush()
        return got

    @property
    def has_arrived(self) -> bool:
        """Whether something may be there to `take`."""
        return bool(self._arrived.pending or self._tls.pending())

    async def fill(
        self,
        target: memoryview,
        interrupt: Interrupt,
        progress: Callable[[int], None] | None,
        filled: Callable[[int], None] | None = None,
    ) -> int:
        """Fill `target`; returns how much of it was filled: less than all only if the connection is lost.

        The bytes are put there as they come, without waking the caller for each piece; see `Stream.read_into`.
        """
        if target.nbytes > IDLE_BUFFER_BYTES and self._buffer is self._idle_buffer:
            self._buffer = bytearray(PIECE_BYTES)
        filling = ReadBuffer(target, progress, filled)
        filling.filled(self.take(target))
        if not filling.rest.nbytes or self.lost is not None:
            return target.nbytes - filling.rest.nbytes
        self._filling = filling
        self._low_water.begin(filling.rest.nbytes - self._undecrypted_bytes)
        try:
            await self.wait_readable(interrupt)
            return target.nbytes - filling.rest.nbytes
        finally:
            self._filling = None
            self._low_water.end()

    async def wait_readable(self, interrupt: Interrupt | None) -> None:
        """Wait until something arrived, or the connection is lost."""
        if self.lost is not None:
            return
        self._reading, self._waiting_since_s = self._loop.create_future(), self._loop.time()
        try:
            await (self._reading if interrupt is None else interrupt.wait(self._reading))
        finally:
            self._reading = None

    # ---- writing

    async def send(self, first: bytes, rest: memoryview, interrupt: Interrupt) -> None:
        """Send `first` (a few KiB) and all of `rest` (contiguous bytes), unless the connection is or gets lost."""
        await self._wait_writable(interrupt)
        self._encrypt(first)
        sent = 0
        while self.lost is None:
            sent += self._encrypt(rest[sent : sent + PIECE_BYTES])
            self._flush()
            if sent == rest.nbytes:
                break
            await self._wait_writable(interrupt)
        self._turn_bytes += sent
        if self._turn_bytes > TURN_BYTES:
            self._turn_bytes = 0
            await asyncio.sleep(0)
            interrupt.check()

    def put(self, data: bytes) -> None:
        """Send a few bytes without waiting."""
        self._encrypt(data)
        self._flush()

    def abort(self) -> None:
        """Close at once and drop what was not delivered; the other side sees a reset."""
        if self._transport is not None:
            with contextlib.suppress(OSError, AttributeError):
                connection = self._transport.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT_AT_ONCE)
            self._transport.abort()
        self._lose("the connection was closed")

    async def close(self) -> None:
        """Abort, and wait until the socket is closed."""
        self.abort()
        if self._transport is not None:
            await asyncio.shield(self._gone)

    # ---- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio`."""
        if isinstance(transport, asyncio.Transport):
            self._transport = transport
            self._low_water.attach(transport)
            transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
            # The event loop does so for sockets that dial, and not for those of a listener that it did not make itself:
            # without it each small answer waits some 40 ms for the acknowledgement of the one before.
            with contextlib.suppress(OSError):
                transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.lost is not None:
                transport.abort()

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002
        """See `asyncio`."""
        self._reading_into = self._buffer
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        """See `asyncio`."""
        self._arrived.write(memoryview(self._reading_into)[:size])
        self.bytes_received += size
        self._undecrypted_bytes = min(self._undecrypted_bytes + size, MAX_RECORD_BYTES)
        self._heard_s = self._loop.time()
        if self._filling is not None:
            got = self.take(self._filling.rest)
            if got:  # a record was completed by what came now
                self._undecrypted_bytes = min(size, MAX_RECORD_BYTES)
            self._filling.filled(got, came=size)
            if not self._filling.rest.nbytes:
                self._wake()
            else:
                self._low_water.came(size, self._filling.rest.nbytes - self._undecrypted_bytes)
        elif self._reading is not None:
            self._wake()
        else:
            if self.on_readable is not None:
                self.on_readable()
            if self._arrived.pending >= PIECE_BYTES and not self._paused and self._transport is not None:
                self._paused = True
                self._transport.pause_reading()

    def eof_received(self) -> None:
        """See `asyncio`; what stops sending here will not listen either."""

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio`."""
        self.ended_there = self.lost is None
        self._lose(str(error) if error else "the other side closed the connection")
        if not self._gone.done():
            self._gone.set_result(None)

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
        return self._transport is not None and self._transport.is_closing()

    async def _wait_writable(self, interrupt: Interrupt) -> None:
        while (self._full or self._is_breaking) and self.lost is None:
            self._writing, self._waiting_since_s = self._loop.create_future(), self._loop.time()
            try:
                await interrupt.wait(self._writing)
            finally:
                self._writing = None

    def _encrypt(self, data: bytes | memoryview) -> int:
        if not data or self.lost is not None:
            return 0
        try:
            return self._tls.write(data)
        except (ssl.SSLError, OSError) as error:
            self._lose(f"TLS failed: {error.strerror or error}")
            return 0

    def _flush(self) -> None:
        """Hand over what TLS has to send."""
        if self._transport is None or self.lost is not None or self._is_breaking:
            return
        data = self._unsent.read()
        self.bytes_sent += len(data)
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self._lose("it does not read")

    def _resume(self) -> None:
        if self._paused and self._transport is not None and self.lost is None:
            self._paused = False
            self._transport.resume_reading()

    def _wake(self) -> None:
        if self._reading is not None and not self._reading.done():
            self._reading.set_result(None)

    def _lose(self, why: str) -> None:
        if self.lost is not None:
            return
        self.lost = why
        if self._transport is not None:
            self._transport.abort()
        self._wake()
        self.resume_writing()
        if self.on_lost is not None:
            self.on_lost()
        self.on_lost = self.on_readable = None  # they know this channel, and its buffers are large
