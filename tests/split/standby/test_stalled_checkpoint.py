"""A checkpoint of which one side does not send or read the rest, while its signs of life go on."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest
import torch

from minga.core.errors import ProtocolError, SilentError
from minga.network.interface import PeerId
from minga.network.rpc.stream import MessageStream
from minga.simulation.virtual_time import run_virtual
from minga.split.standby.checkpoint import TopCheckpoint
from minga.split.standby.transfer import CHECKPOINT, CheckpointHeader, CheckpointRequest, CheckpointServer, fetch
from minga.training.state.manifest import CHUNK_BYTES, MAX_MANIFEST_BYTES, build_manifest
from minga.training.state.snapshot import StateSnapshot, TensorEntry
from minga.training.transfer.messages import CHUNK_TIMEOUT_S
from tests.worlds.node_world import World
from tests.worlds.swarm_tools import virtually

SIZE = 8 * CHUNK_BYTES
SNAPSHOT = StateSnapshot(
    1,
    (TensorEntry("weight", "uint8", (SIZE,)),),
    {},
    torch.randint(0, 256, (SIZE,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)),
)


@pytest.mark.parametrize("sent", ["nothing", "the header", "the manifest", "two chunks", "all but the end"])
def test_a_server_that_does_not_send_the_rest_is_given_up(sent: str) -> None:
    async def stall(_: PeerId, stream: MessageStream) -> None:
        await stream.receive(CheckpointRequest)
        encoded = build_manifest(SNAPSHOT).encoded
        if sent != "nothing":
            await stream.send(CheckpointHeader(0, {}, len(encoded)))
        if sent not in ("nothing", "the header"):
            await stream.send_bulk(encoded)
        for index in range({"two chunks": 2, "all but the end": 8}.get(sent, 0)):
            await stream.send_bulk(SNAPSHOT.bytes_view[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES])
        await asyncio.sleep(10_000)

    async def scene() -> float:
        world = World()
        server, standby = await world.node(), await world.node()
        server.serve(CHECKPOINT, stall)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        with pytest.raises(SilentError, match="for 60 s"):
            await fetch(standby, server.peer_id, None, lambda _: None)
        waited_s = loop.time() - begun
        for node in world.nodes:
            await node.close()
        return waited_s

    assert CHUNK_TIMEOUT_S <= run_virtual(scene(), limit_s=1000.0) < CHUNK_TIMEOUT_S + 10.0


def test_a_standby_that_does_not_read_keeps_no_other_from_its_turn() -> None:
    async def scene() -> None:
        world = World()
        server, deaf, standby = [await world.node() for _ in range(3)]

        async def take() -> TopCheckpoint:
            return TopCheckpoint(SNAPSHOT, 0, {})

        CheckpointServer(server, (deaf.peer_id, standby.peer_id), lambda _: True, take)
        async with deaf.open(server.peer_id, CHECKPOINT, bulk=True) as stream:
            await stream.send(CheckpointRequest(0, has_one=False))
            await stream.receive(CheckpointHeader)
            with pytest.raises(SilentError):
                await fetch(standby, server.peer_id, None, lambda _: None)  # as long as the other has its turn
            found = await fetch(standby, server.peer_id, None, lambda _: None)
            assert found.snapshot.has_bytes_of(SNAPSHOT)
        for node in world.nodes:
            await node.close()

    run_virtual(scene(), limit_s=1000.0)


@virtually
async def test_a_manifest_that_is_only_announced_takes_no_memory() -> None:
    async def boast(_: PeerId, stream: MessageStream) -> None:
        await stream.receive(CheckpointRequest)
        await stream.send(CheckpointHeader(0, {}, MAX_MANIFEST_BYTES))

    world = World()
    server, standby = await world.node(), await world.node()
    server.serve(CHECKPOINT, boast)
    tracemalloc.start()
    with pytest.raises(ProtocolError):
        await fetch(standby, server.peer_id, None, lambda _: None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MAX_MANIFEST_BYTES / 8
    for node in world.nodes:
        await node.close()
