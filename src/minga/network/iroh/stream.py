"""Streams of the iroh network: one one-way QUIC stream for each direction, see `connection.py`.

Every one-way stream begins with a header: its kind and the number that its opener gave to the pair. OPEN comes from the
side that opened the pair, ANSWER from the other one as soon as it has something to say. ABORT says that the answer to
this number will not come, or no further. A QUIC reset may overtake the header of the stream that it resets; without
ABORT the opener would then wait for an answer for ever. CONTROL belongs to no stream: a message to the TCP lane at the
other end, whose length stands in the place of the number.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import struct
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol

from iroh import iroh_ffi

from minga.core.errors import MingaError, ProtocolError, UnreachableError
from minga.network.interface import Buffer, PeerId, Stream
from minga.network.interrupt import Interrupt
from minga.network.iroh import ffi_bytes

HEADER = struct.Struct(">BQ")
OPEN, ANSWER, ABORT, CONTROL = range(4)

BINDING_ERRORS = (iroh_ffi.IrohError, iroh_ffi.InternalError)
"""The exceptions of the bindings: errors of the transport, and panics inside the foreign library."""


class IrohStreamOwner(Protocol):
    """The part of its connection that a stream needs."""

    @property
    def peer_id(self) -> PeerId:
        """The id of the other side."""

    def explain(self, what: str) -> MingaError:
        """The error to raise when `what` went wrong."""

    async def open_sender(self, first: bytes, interrupt: Interrupt) -> Any:
        """Open a one-way stream and send `first`."""

    async def break_off(self, *ends: Callable[[int], Coroutine[Any, Any, None]]) -> None:
        """Call the foreign `reset` or `stop` of one-way streams."""

    def abort_answer(self, number: int) -> None:
        """Tell the opener of stream `number` that no more of its answer will come."""


class IrohStream(Stream):
    """A bidirectional stream. A cancelled write may have sent a part: such a stream is good for `reset` only."""

    def __init__(self, connection: IrohStreamOwner, number: int, *, opened_here: bool) -> None:
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

    async def _open_sender(self, first: bytes) -> None:
        async with self._opening:
            self.interrupt.check()
            kind = OPEN if self._opened_here else ANSWER
            sender = await self._connection.open_sender(HEADER.pack(kind, self._number) + first, self.interrupt)
            self._sender = sender
            if self.interrupt.fired:  # in this very turn, and the reset did not know of this sender yet
                await self._connection.break_off(sender.reset)
                self.interrupt.check()

    async def _read_some(self, target: memoryview) -> int:
        with self._explained():
            self.interrupt.check()
            if self._ended or not target.nbytes:
                return 0
            if self._receiver is None:
                self._receiver_arrived = asyncio.get_running_loop().create_future()
                await self.interrupt.wait(self._receiver_arrived)
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
