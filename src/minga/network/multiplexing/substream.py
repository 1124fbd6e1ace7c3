"""One stream on a carrier; it behaves like a stream of the connection itself."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from minga.core.errors import MingaError, ProtocolError, UnreachableError
from minga.network.backlog import Backlog
from minga.network.interface import Buffer, PeerId, Stream
from minga.network.meta_bytes import byte_view, fill
from minga.network.multiplexing.frames import CREDIT, CREDIT_BYTES, DATA, LAST, PIECE_BYTES, RESET, WINDOW_BYTES, pack
from minga.network.multiplexing.outbox import Outbox

SMALL_BYTES = PIECE_BYTES // 4
"""Unread pieces of fewer bytes are copied together."""

MakeError = Callable[[], MingaError]


class SubstreamOwner(Protocol):
    """The part of its multiplexer that a stream needs."""

    peer: PeerId
    outbox: Outbox
    backlog: Backlog

    def forget(self, number: int) -> None:
        """Both directions of a stream have ended."""


class Substream(Stream):
    """Stream `number` of a carrier."""

    def __init__(self, owner: SubstreamOwner, number: int) -> None:
        self._owner, self.number = owner, number
        self._room = WINDOW_BYTES
        self._pieces: deque[memoryview] = deque()
        self._taken_bytes = 0
        self._open_bytes = self._waiting_bytes = 0
        """How much of the window was used and not given back so far, and how much of that waits to be read."""
        self._finished = self._ended = self._is_over = False
        self._error: MakeError | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    # ---- the interface

    async def write(self, data: Buffer) -> None:
        """Send all of `data`; see the interface."""
        view = byte_view(data)
        if self._finished:
            raise ValueError("write after finish")
        while True:
            self._check()
            await self._owner.outbox.room()
            while not self._room:
                self._writer = asyncio.get_running_loop().create_future()
                await self._writer
                self._check()
            piece = view[: min(PIECE_BYTES, self._room)]
            if piece.nbytes:
                self._room -= piece.nbytes
                self._owner.outbox.put(pack(DATA, self.number, piece.nbytes), bytes(piece))
            view = view[piece.nbytes :]
            if not view.nbytes:
                return

    async def finish(self) -> None:
        """Say that nothing more will be written; see the interface. That is no news in a hurry."""
        self._check()
        if not self._finished:
            self._finished = True
            self._owner.outbox.put(pack(LAST, self.number), lazily=True)
            self._end_if_over()

    async def read(self, max_bytes: int) -> bytes:
        """Return what is there; see the interface."""
        while not self._pieces:
            if not await self._more():
                return b""
        piece = self._pieces.popleft()
        if len(piece) > max_bytes:
            self._pieces.appendleft(piece[max_bytes:])
            piece = piece[:max_bytes]
        self._took(len(piece))
        return bytes(piece)

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
                raise ProtocolError("the stream ended early", peer=self._owner.peer)
            while self._pieces and view.nbytes:
                piece = self._pieces.popleft()
                if len(piece) > view.nbytes:
                    self._pieces.appendleft(piece[view.nbytes :])
                    piece = piece[: view.nbytes]
                fill(view[: len(piece)], piece)
                view = view[len(piece) :]
                self._took(len(piece))
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
        peer = self._owner.peer
        if self._error is None and not self._is_over:
            self._owner.outbox.put(pack(RESET, self.number))
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
        _wake(self._reader)
        self._end_if_over()

    def may_write(self, size: int) -> None:
        """The other side has read so many bytes."""
        self._room = min(self._room + size, WINDOW_BYTES)
        _wake(self._writer)

    def fail(self, error: MakeError, *, drop: bool) -> None:
        """Let every later operation raise `error()`, reads after what is buffered unless `drop`."""
        if drop:
            self._pieces.clear()
            self._note_waiting(-self._waiting_bytes)
        if self._error is None:
            self._error = error
            if drop:
                self._ended = False
            _wake(self._reader)
            _wake(self._writer)
            self._over()

    # ---- inner workings

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
        self._owner.backlog.note(self._owner.peer, self, self._waiting_bytes)

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

    def _took(self, size: int) -> None:
        """Give credit in quarters of a window: few small frames."""
        self._note_waiting(-size)
        self._taken_bytes += size
        if self._taken_bytes >= WINDOW_BYTES // 4 and not self._ended:
            units = self._taken_bytes // CREDIT_BYTES
            self._taken_bytes -= units * CREDIT_BYTES
            self._open_bytes -= units * CREDIT_BYTES
            self._owner.outbox.put(pack(CREDIT, self.number, units))

    def _end_if_over(self) -> None:
        if self._finished and self._ended:
            self._over()

    def _over(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._owner.forget(self.number)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
