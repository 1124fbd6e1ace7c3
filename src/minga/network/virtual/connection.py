"""Connections and streams of the virtual network, as the protocol code uses them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Literal

from minga.core.errors import ClosedError, ProtocolError, UnreachableError
from minga.network.interface import Buffer, Connection, LinkFacts, PeerId, Stream
from minga.network.interrupt import AcceptQueue, MakeError
from minga.network.meta_bytes import byte_view, is_meta
from minga.network.virtual.paths import SEND_BUFFER_BYTES, Host, LineEnd, NetworkPaths, Pipe, Relay

SWEEP_STREAMS = 2
"""Streams that have ended are forgotten when there are so many more than twice those that went on last time."""


class VirtualConnection(Connection, LineEnd):
    """One end of a connection between two simulated hosts; `ends` are those of this host that are open."""

    far: VirtualConnection

    def __init__(self, host: Host, far_peer: PeerId, paths: NetworkPaths, ends: dict[VirtualConnection, None]) -> None:
        super().__init__(host)
        self.paths = paths
        self._far_peer, self._ends = far_peer, ends
        self._streams: dict[VirtualStream, None] = {}
        self._sweep_at = SWEEP_STREAMS
        self._incoming: AcceptQueue[VirtualStream] = AcceptQueue()
        self._lost: MakeError | None = None
        self._process_ended = False
        self._watch: asyncio.TimerHandle | None = None
        ends[self] = None

    @property
    def peer_id(self) -> PeerId:
        """The id of the other side."""
        return self._far_peer

    async def open_stream(self, *, bulk: bool = False) -> VirtualStream:  # noqa: ARG002  (one way is all there is)
        """Open a stream; see `Connection`."""
        if self.host.is_shut:
            await self.host.gate()
        if self._lost is not None:
            raise self._lost()
        near, far = VirtualStream(self), VirtualStream(self.far)
        forth = Pipe(self.paths, self, self.far, lambda: self.far.offer(far))
        back = Pipe(self.paths, self.far, self, None)
        near.attach(forth, back, far)
        far.attach(back, forth, near)
        self._keep(near)
        self.far._keep(far)  # noqa: SLF001
        return near

    async def accept_stream(self) -> VirtualStream:
        """Wait for a stream that the other side opens; see `Connection`."""
        await self.host.gate()
        stream = await self._incoming.take()
        await self.host.gate()
        return stream

    def facts(self) -> LinkFacts:
        """Round trip without queueing, and the bytes of all streams so far."""
        round_trip_s = self.paths.latency_s(self.host, self.far.host) + self.paths.latency_s(self.far.host, self.host)
        path: Literal["direct", "relayed"] = "direct" if self._relay is None else "relayed"
        return LinkFacts(round_trip_s, path, self.bytes_sent, self.bytes_received)

    @property
    def seen_at(self) -> str | None:
        """The public address of the other side; see `Connection`."""
        return self.far.host.seen_by(self.host) if self._relay is None else None

    @property
    def is_closed(self) -> bool:
        """Whether this end knows that the connection is gone."""
        return self._lost is not None

    @property
    def has_process_ended(self) -> bool:
        """Whether it was lost for that; see `Connection`."""
        return self._process_ended

    async def close(self) -> None:
        """Close the connection, and notify the other side."""
        with contextlib.suppress(ClosedError):
            await self.host.gate()
            self.hang_up(lambda: UnreachableError("this side closed the connection", peer=self._far_peer))

    def hang_up(self, error: MakeError) -> None:
        """End this side with `error` and tell the other."""
        if self._lost is None:
            self.lose(error, drop=True)
            self.paths.signal(self.host, self.far.host, self.far.told_goodbye)

    def told_goodbye(self) -> None:
        """The other side closed; bytes that have arrived can still be read."""
        self.lose(lambda: UnreachableError("the other side closed the connection", peer=self._far_peer), drop=False)

    def notice_end(self) -> None:
        """The process at the other end has ended; whether this side can know."""
        if self._lost is None and self.paths.is_open(self.far.host, self.host):
            self._process_ended = True
            self.lose(lambda: UnreachableError("its process has ended", peer=self._far_peer), drop=False)

    def offer(self, stream: VirtualStream) -> None:
        """The other side's stream is there to be accepted."""
        self._incoming.put(stream)

    def lose(self, error: MakeError, *, drop: bool) -> None:
        """End this side: all operations raise `error()`, reads after what is buffered unless `drop`."""
        if self._lost is None:
            self._lost = error
            self._incoming.fail(error)
            self._ends.pop(self, None)
            for stream in self._streams:
                stream.fail(error, drop=drop)
            self._streams.clear()
            if self._watch is not None:
                self._watch.cancel()

    def recheck(self) -> None:
        """Something about the path changed: begin or stop to wait for the idle timeout, and let pass what can."""
        if self._lost is not None:
            return
        if self.paths.is_silent(self.host, self.far.host):
            if self._watch is None:
                when = self.paths.clock.now() + self.paths.idle_timeout_s
                self._watch = self.paths.clock.at(when, self._time_out)
        elif self._watch is not None:
            self._watch.cancel()
            self._watch = None
        for stream in list(self._streams):
            stream.flush()

    @property
    def _relay(self) -> Relay | None:
        return self.paths.relay(self.host, self.far.host)

    def _time_out(self) -> None:
        seconds = self.paths.idle_timeout_s
        self.lose(lambda: UnreachableError(f"nothing was heard for {seconds:g} s", peer=self._far_peer), drop=False)

    def _keep(self, stream: VirtualStream) -> None:
        if self._lost is not None:
            stream.fail(self._lost, drop=True)
            return
        if len(self._streams) >= self._sweep_at:
            self._streams = {kept: None for kept in self._streams if not kept.is_done}
            self._sweep_at = 2 * len(self._streams) + SWEEP_STREAMS
        self._streams[stream] = None


class VirtualStream(Stream):
    """One end of a stream between two simulated hosts."""

    _out: Pipe
    _into: Pipe
    _far: VirtualStream

    def __init__(self, connection: VirtualConnection) -> None:
        self._connection = connection
        self._host = connection.host
        self._was_reset = False

    def attach(self, out: Pipe, into: Pipe, far: VirtualStream) -> None:
        """Connect both ends, once."""
        self._out, self._into, self._far = out, into, far

    async def write(self, data: Buffer) -> None:
        """Send `data`; see `Stream`."""
        if self._host.is_shut:
            await self._host.gate()
        out = self._out
        if out.write_error is not None:
            raise out.write_error()
        if out.finished:
            raise ValueError("write after finish")
        if memoryview(data).nbytes:
            out.put(data if isinstance(data, bytes) or is_meta(data) else bytes(data))
        while out.unsent > SEND_BUFFER_BYTES:
            await out.wait_writable()
            if self._host.is_shut:
                await self._host.gate()
            if out.write_error is not None:
                raise out.write_error()

    def write_now(self, data: bytes) -> bool:
        """Send `data` if that takes no waiting; see `Stream`."""
        out = self._out
        if self._host.is_shut or out.write_error is not None or out.finished or out.unsent > SEND_BUFFER_BYTES:
            return False
        out.put(data)
        return True

    async def finish(self) -> None:
        """End the outgoing direction; see `Stream`."""
        if self._host.is_shut:
            await self._host.gate()
        if self._out.write_error is not None:
            raise self._out.write_error()
        self._out.finish()

    async def read(self, max_bytes: int) -> bytes:
        """Read what is there; see `Stream`."""
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, not {max_bytes}")
        if self._host.is_shut:
            await self._host.gate()
        while not (data := self._into.pop(max_bytes)) and await self._more():
            pass
        return data

    async def read_into(
        self,
        target: memoryview,
        progress: Callable[[int], None] | None = None,
        filled: Callable[[int], None] | None = None,
    ) -> None:
        """Fill `target`; see `Stream`."""
        if self._host.is_shut:
            await self._host.gate()
        if not (view := byte_view(target)).nbytes:
            return
        into = self._into
        try:
            filling = into.fill(view, [told for told in (progress, filled) if told is not None])
            while filling.missing and await self._more():
                if filling.error is not None:
                    raise filling.error
        finally:
            into.stop_filling()
        if filling.missing:
            peer = self._connection.peer_id
            raise ProtocolError(f"the stream ended {filling.missing} bytes early", peer=peer)

    async def reset(self) -> None:
        """Abort both directions; see `Stream`."""
        with contextlib.suppress(ClosedError):
            if self._host.is_shut:
                await self._host.gate()
            if not self._was_reset and not self._connection.is_closed:
                self._was_reset = True
                peer = self._connection.peer_id
                if not self.is_done:
                    self._connection.paths.signal(
                        self._connection.host, self._connection.far.host, self._far.told_reset
                    )
                self.fail(lambda: UnreachableError("this side reset the stream", peer=peer), drop=True)

    def told_reset(self) -> None:
        """The other side reset the stream; that comes too late for a direction that has ended."""
        peer = self._connection.peer_id
        self.fail(lambda: UnreachableError("the other side reset the stream", peer=peer), drop=not self._into.ended)

    def fail(self, error: MakeError, *, drop: bool) -> None:
        """Make every later operation raise `error()`."""
        self._out.fail_writer(error)
        self._into.fail_reader(error, drop=drop)

    def flush(self) -> None:
        """Let pass what was held back."""
        self._out.flush()

    @property
    def is_done(self) -> bool:
        """Whether nothing can happen any more on this stream."""
        out, into = self._out, self._into
        return (out.ended or out.write_error is not None) and (into.ended or into.read_error is not None)

    async def _more(self) -> bool:
        """Wait for bytes; False at the end of the stream."""
        if self._into.read_error is not None:
            raise self._into.read_error()
        if self._into.ended:
            return False
        await self._into.wait_readable()
        if self._host.is_shut:
            await self._host.gate()
        return True
