"""Carries all streams of small messages between two peers, in both directions, over one stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from minga.core.aio import end
from minga.core.errors import ClosedError, MingaError, ProtocolError, RemoteError, UnreachableError
from minga.network.backlog import Backlog
from minga.network.interface import PeerId, Stream
from minga.network.multiplexing.frames import (
    CREDIT,
    CREDIT_BYTES,
    LAST,
    PULSE,
    RESET,
    FrameParser,
    SubstreamFrame,
    pack,
)
from minga.network.multiplexing.outbox import Outbox
from minga.network.multiplexing.substream import Substream

READ_BYTES = 1 << 15


class CarrierWatcher(Protocol):
    """Who looks after the signs of life on a carrier."""

    def wrote(self) -> None:
        """Something was written to it."""

    def heard(self) -> None:
        """Something came."""

    def pulsed(self, ticks: int) -> None:
        """A pulse came that announces the next one after so many ticks. Raises `ValueError` for an odd number."""


class Multiplexer:
    """The streams with `peer` over the stream `carrier`, which was opened here or there. What they have that waits to
    be read is in the `backlog`; `arrived` is told of each stream that the other side opens.
    """

    def __init__(
        self,
        carrier: Stream,
        peer: PeerId,
        *,
        opened_here: bool,
        watcher: CarrierWatcher,
        backlog: Backlog,
        arrived: Callable[[Substream], None],
    ) -> None:
        self.peer, self.backlog = peer, backlog
        self.outbox = Outbox(carrier, watcher.wrote)
        self._carrier, self._watcher, self._arrived = carrier, watcher, arrived
        self._streams: dict[int, Substream] = {}
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
        return not self._streams

    def open(self) -> Substream:
        """Open a stream. The other side learns of it with the first bytes. Raises `UnreachableError`."""
        if self._error is not None:
            raise self._error()
        stream = self._streams[self._next] = Substream(self, self._next)
        self._next += 2
        return stream

    def pulse(self, ticks: int) -> bool:
        """Say that this side lives, and until when it may be quiet; False if something is on its way, which says only
        the first.
        """
        if not self.outbox.is_idle:
            return False
        self.outbox.put(pack(PULSE, ticks))
        return True

    def give_up(self) -> None:
        """Reset the carrier, and so all streams on it: nothing gets through any more."""
        if self._resetting is None:
            self._resetting = asyncio.get_running_loop().create_task(self._carrier.reset())

    def forget(self, number: int) -> None:
        """Both directions of a stream have ended."""
        self._streams.pop(number, None)

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
            self._watcher.heard()
            for frame in parser.feed(data):
                self._take(frame)

    def _take(self, frame: SubstreamFrame) -> None:
        kind, number, size, body = frame
        if kind == PULSE:
            self._watcher.pulsed(number)
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
        self.outbox.fail(make)
        for stream in list(self._streams.values()):
            stream.fail(make, drop=False)
