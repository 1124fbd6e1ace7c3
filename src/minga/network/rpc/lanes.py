"""The lanes of one peer's connections: one for each connection whose two sides both know them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from minga.core.errors import ProtocolError
from minga.core.thread_guard import loop_bound
from minga.network.interface import Connection, PeerId, Stream
from minga.network.lane.lane import MessageLane
from minga.network.lane.stream import LaneStream
from minga.network.rpc.keepalive import KeepaliveTicker, LaneSigns, LastHeard


@loop_bound
class Lanes:
    """Opens and serves streams on lanes. `serve` takes a stream that the other side opened, `offend` counts a breach of
    the protocol, `spawn` runs a task.
    """

    def __init__(
        self,
        clockwork: KeepaliveTicker,
        serve: Callable[[Stream, Connection], None],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        offend: Callable[[PeerId, str], None],
    ) -> None:
        self._clockwork, self._serve, self._spawn, self._offend = clockwork, serve, spawn, offend
        self._lanes: dict[Connection, tuple[MessageLane, LaneSigns]] = {}

    def begin(self, connection: Connection, stream: Stream, last_heard: LastHeard, *, dialled: bool) -> None:
        """Go on with the stream of the hellos as a lane, until the connection is lost."""
        signs = LaneSigns(self._clockwork, last_heard, lambda ticks: lane.pulse(ticks))

        def arrived(stream: LaneStream) -> None:
            self._serve(stream, connection)

        lane = MessageLane(stream, connection.peer_id, dialled=dialled, watcher=signs, arrived=arrived)
        self._lanes[connection] = lane, signs
        self._spawn(self._run(connection, lane, signs))

    def open(self, connection: Connection, *, lazy: bool) -> LaneStream | None:
        """A new stream on the lane of a connection; None if that has none."""
        if (found := self._lanes.get(connection)) is None:
            return None
        stream = found[0].open()
        stream.is_lazy = lazy
        return stream

    def signs(self, connection: Connection, stream: Stream) -> LaneSigns | None:
        """The signs of life that a stream shares with others; None for one that has a stream of the connection."""
        found = self._lanes.get(connection)
        return None if found is None or not isinstance(stream, LaneStream) else found[1]

    async def _run(self, connection: Connection, lane: MessageLane, signs: LaneSigns) -> None:
        try:
            await lane.run()
        except ProtocolError as error:
            self._offend(connection.peer_id, error.message)
        finally:
            del self._lanes[connection]
            signs.close()
            await connection.close()
