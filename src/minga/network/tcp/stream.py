"""Streams over TCP: each has one connection of a pool to itself, and gives it back after a clean end.

On the wire a stream is a sequence of pieces, each behind its length in four bytes (big-endian); a length of zero says
that nothing more comes in this direction. Once that was said in both, the connection is ready for the next stream. A
stream that is reset takes its connection with it.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Protocol

from minga.core.errors import MingaError, ProtocolError
from minga.network.interface import Buffer, PeerId, Stream
from minga.network.interrupt import Interrupt
from minga.network.tcp.sealed_channel import LEAST_PIECE_BYTES, PIECE_BYTES, SealedChannel

_LENGTH = struct.Struct(">I")
_MAX_PIECE_BYTES = 1 << 30
_FIRST_BYTES = 1 << 10
"""How much of a piece goes into one record with its length: a record cannot be read before all of it is there."""
_HELD_BYTES = 64
_END = _LENGTH.pack(0)


class TcpStreamOwner(Protocol):
    """The part of its connection's pool that a stream needs."""

    @property
    def peer_id(self) -> PeerId:
        """The peer at the other end."""

    def explain(self, what: str) -> MingaError:
        """The error to raise when `what` went wrong."""

    def released(self, stream: TcpStream, channel: SealedChannel, *, clean: bool, stalled_s: float) -> None:
        """Called once, when a stream no longer needs its connection; only a clean one can be used again.

        `stalled_s`: for how many seconds it had been waiting without anything from the other side.
        """


class TcpStream(Stream):
    """A bidirectional stream. A cancelled write or `read_into` may have moved a part: then it is good for reset only.

    A few bytes written wait for the end of this turn of the loop, to travel with what is written meanwhile.
    """

    def __init__(self, owner: TcpStreamOwner, channel: SealedChannel, *, opened_here: bool) -> None:
        self.interrupt = Interrupt()
        self._owner, self._channel, self._opened_here = owner, channel, opened_here
        self._held = b""
        self._prefix = bytearray()
        self._piece_bytes = 0  # what is still to come of the piece that is being read
        self._wrote = self._finished = self._said_end = self._ended = self._broken = self._released = False
        self._torn = False
        channel.use(busy=True)

    async def write(self, data: Buffer) -> None:
        """Send all of `data`; see the interface."""
        view = memoryview(data).cast("B")
        self.interrupt.check()
        if self._finished:
            raise self._owner.explain("the stream was finished")
        while view.nbytes:
            if not self._held and view.nbytes <= _HELD_BYTES:
                self._held = bytes(view)
                asyncio.get_running_loop().call_soon(self._send_held)
                return
            view = await self._send_piece(view)

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
        if not self._finished:
            self._finished = True
            await self._send(self._take_held() + _END, memoryview(b""))
            self._said_end = True
            self._release_if_over()

    async def read(self, max_bytes: int) -> bytes:
        """Return what is there; see the interface."""
        self.interrupt.check()
        if not max_bytes or not await self._next_piece():
            return b""
        target = bytearray(min(max_bytes, self._piece_bytes, PIECE_BYTES))
        while not (got := self._channel.take(memoryview(target))):
            await self._wait_readable()
        self._piece_bytes -= got
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
        self.interrupt.check()
        while view.nbytes:
            if not await self._next_piece():
                raise ProtocolError("the stream ended early", peer=self._owner.peer_id)
            part = view[: self._piece_bytes]
            self._broken = True  # if this is cancelled, it is unknown how much of the piece was read
            got = await self._channel.fill(part, self.interrupt, progress, filled)
            self._broken = False
            if got < part.nbytes:
                self._fail()
            self._piece_bytes -= got
            view = view[got:]

    async def reset(self) -> None:
        """Abort both directions; see the interface."""
        if self.interrupt.fired:
            return
        stalled_s = self._channel.stalled_s
        owner = self._owner
        self.interrupt.fire(lambda: owner.explain("the stream was reset"))
        unused = self._opened_here and not self._wrote
        over = self._said_end and not self._broken and self._is_end_here()
        self._release(clean=unused or over, stalled_s=stalled_s)

    # ---- sending

    async def _send_piece(self, data: memoryview) -> memoryview:
        """Send what was held and as much of `data` as a piece may have; returns the rest."""
        held, self._held = self._held, b""
        body = data[: _MAX_PIECE_BYTES - len(held)]
        first = body[: _FIRST_BYTES - len(held)]
        head = b"".join((_LENGTH.pack(len(held) + body.nbytes), held, first))
        await self._send(head, body[first.nbytes :])
        return data[body.nbytes :]

    async def _send(self, first: bytes, rest: memoryview) -> None:
        was_torn, self._wrote, self._torn = self._torn, True, True  # if cancelled, it is unknown how much was sent
        await self._channel.send(first, rest, self.interrupt)
        self._torn = was_torn
        if self._channel.lost is not None:
            self._fail()

    def _take_held(self) -> bytes:
        held, self._held = self._held, b""
        return _LENGTH.pack(len(held)) + held if held else b""

    def _send_held(self) -> None:
        if self._held and not self.interrupt.fired:
            self._wrote = True
            self._channel.put(self._take_held())

    # ---- receiving

    async def _next_piece(self) -> bool:
        """Make sure that a piece has begun; False at the end of the stream."""
        while not self._ended and not self._take_prefix():
            await self._wait_readable()
        return not self._ended

    def _take_prefix(self) -> bool:
        """Whether it is known how long the piece at hand is, or that there are no more."""
        if not self._piece_bytes and not self._ended:
            missing = bytearray(_LENGTH.size - len(self._prefix))
            self._prefix += missing[: self._channel.take(memoryview(missing))]
            if len(self._prefix) == _LENGTH.size:
                (self._piece_bytes,) = _LENGTH.unpack(self._prefix)
                self._prefix.clear()
                self._ended = not self._piece_bytes
                self._release_if_over()
        return self._ended or self._piece_bytes > 0

    async def _wait_readable(self) -> None:
        if self._channel.lost is not None:
            self._fail()
        await self._channel.wait_readable(self.interrupt)

    def _is_end_here(self) -> bool:
        """Whether the end of the other direction arrived already; earlier bytes are dropped."""
        scrap = memoryview(bytearray(LEAST_PIECE_BYTES))
        while self._take_prefix() and not self._ended:
            got = self._channel.take(scrap[: self._piece_bytes])
            if not got:
                return False
            self._piece_bytes -= got
        return self._ended

    # ---- the end

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
            clean = clean and not self._torn and not self._broken
            self._owner.released(self, self._channel, clean=clean, stalled_s=stalled_s)
