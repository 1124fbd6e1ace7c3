"""What hostile peers let wait to be read is bounded for all of them together, and costs honest ones nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from minga.core.errors import RemoteError
from minga.network.backlog import Backlog
from minga.network.interface import PeerId
from minga.network.rpc.multiplexer import WINDOW_BYTES
from minga.network.rpc.stream import MAX_MESSAGE_BYTES, MESSAGE, MessageStream
from tests.worlds.reduce_world import Party, World
from tests.worlds.swarm_tools import virtually

pytestmark = pytest.mark.promise("what-strangers-can-and-cannot-do")

LATENCY_S = 0.01
MOST_BYTES = 6 << 20
HOSTILE, STREAMS = 5, 40
ALL_BYTES = HOSTILE * STREAMS * WINDOW_BYTES


class Blob(msgspec.Struct, frozen=True):
    data: bytes


class SmallBacklog(Backlog):
    """Remembers how much there was at most."""

    peak_bytes = 0

    def __init__(self) -> None:
        super().__init__()
        self.most_bytes = MOST_BYTES

    def note(self, peer: PeerId, place: object, size: int) -> None:
        super().note(peer, place, size)  # type: ignore[arg-type]
        self.peak_bytes = max(self.peak_bytes, self.total_bytes)


async def leave_unread(stream: MessageStream) -> None:
    """A whole window of what nobody reads."""
    await stream._stream.write(bytes(WINDOW_BYTES))


async def leave_unfinished(stream: MessageStream) -> None:
    """A message of which the last byte does not come."""
    await stream._stream.write(bytes([MESSAGE]) + MAX_MESSAGE_BYTES.to_bytes(4, "big") + bytes(MAX_MESSAGE_BYTES - 1))


async def never_read(peer: PeerId, stream: MessageStream) -> None:
    await asyncio.Event().wait()


async def echo(peer: PeerId, stream: MessageStream) -> None:
    await stream.send(await stream.receive(Blob))


@pytest.mark.parametrize(("method", "leave"), [("hold", leave_unread), ("echo", leave_unfinished)])
def test_hostile_peers_take_the_room_from_each_other_and_honest_ones_go_on(
    monkeypatch: pytest.MonkeyPatch, method: str, leave: Callable[[MessageStream], Awaitable[None]]
) -> None:
    monkeypatch.setattr("minga.network.rpc.node.Backlog", SmallBacklog)

    async def flood(one: Party, victim: Party) -> None:
        """Until it is cut off; its streams are reset."""
        streams = contextlib.AsyncExitStack()
        with contextlib.suppress(RemoteError):
            async with streams:
                for _ in range(STREAMS):
                    stream = await streams.enter_async_context(one.node.open(victim.peer_id, method))
                    with contextlib.suppress(RemoteError):
                        await leave(stream)
                await asyncio.Event().wait()

    @virtually
    async def main() -> tuple[int, set[str], list[float]]:
        world = World(HOSTILE + 2, latency_s=LATENCY_S)
        await world.start()
        victim, honest, *hostile = world.parties
        victim.node.serve("hold", never_read)
        victim.node.serve("echo", echo)
        for party in (honest, *hostile):
            await party.node.connection(victim.peer_id)
        await asyncio.sleep(1.0)  # carriers are there
        backlog = victim.node.backlog
        assert isinstance(backlog, SmallBacklog)
        loop, took_s = asyncio.get_running_loop(), list[float]()
        floods = [loop.create_task(flood(one, victim)) for one in hostile]
        for size in (200, 20_000, 600_000) * 20:
            begun_s = loop.time()
            assert len((await honest.node.call(victim.peer_id, "echo", Blob(bytes(size)), Blob)).data) == size
            took_s.append(loop.time() - begun_s)
        for task in floods:
            task.cancel()
        await asyncio.gather(*floods, return_exceptions=True)
        await asyncio.sleep(2.0)
        assert backlog.total_bytes == 0
        blamed = {peer for peer, _ in victim.offences()}
        assert blamed <= {party.peer_id for party in hostile}
        await world.close()
        return backlog.peak_bytes, blamed, took_s

    peak_bytes, blamed, took_s = main()
    assert 0.5 * MOST_BYTES < peak_bytes <= MOST_BYTES < ALL_BYTES / 10
    assert blamed
    assert max(took_s) <= 5 * LATENCY_S, "of virtual time: nobody waits for room"
