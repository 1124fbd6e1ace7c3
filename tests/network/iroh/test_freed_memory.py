"""What ends is freed at once, not when the garbage collector comes by: that counts objects, and sees no megabytes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import weakref
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch

from minga.averaging.allreduce import service
from minga.averaging.allreduce.round import Round
from minga.averaging.codecs.layout import VectorLayout
from minga.core.errors import RemoteError
from minga.core.events.bus import EventBus
from minga.network.interface import Address, PeerId
from minga.network.iroh.connection import IrohConnection, IrohStream
from minga.network.iroh.network import IrohNetwork, NetworkSettings
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream
from minga.network.tcp.bulk_lane import TcpStream
from minga.network.tcp.sealed_channel import SealedChannel
from tests.worlds.reduce_world import World
from tests.worlds.swarm_tools import virtually

LARGE = (MessageStream, IrohStream, TcpStream, SealedChannel, IrohConnection)


class Number(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    value: int


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def count(*kinds: type) -> dict[str, int]:
    alive = [type(each) for each in gc.get_objects() if type(each) in kinds]
    return {kind.__name__: alive.count(kind) for kind in kinds}


async def node(book: dict[PeerId, Address]) -> Node:
    network = await IrohNetwork.open(os.urandom(32), NetworkSettings(host="127.0.0.1"))
    made = Node(
        network, run_id="run", role="trainer", lookup=book.get, events=EventBus(asyncio.get_running_loop().time)
    )

    async def echo(peer: PeerId, stream: MessageStream) -> None:
        number, body = await stream.receive(Number), bytearray(100_000)
        await stream.receive_bulk_into(memoryview(body))
        if number.value:
            await stream.send(number)
            await stream.send_bulk(body)
        else:
            await stream.receive(Number)  # which never comes

    made.serve("echo", echo)
    made.start()
    book[made.peer_id] = network.address
    return made


async def talk(here: Node, there: Node, number: Number) -> None:
    body = bytearray(100_000)
    async with asyncio.timeout(60.0 if number.value else 0.2), here.open(there.peer_id, "echo", bulk=True) as stream:
        await stream.send(number)
        await stream.send_bulk(body)
        await stream.receive(Number)
        await stream.receive_bulk_into(memoryview(body))
        await stream.finish()
        await stream.receive_end()


async def settled(*kinds: type, most: int = 1) -> dict[str, int]:
    """How many there are when what goes on in the background has ended; whoever accepts them holds the last one."""
    for _ in range(300):
        await asyncio.sleep(0.1)
        if max(count(*kinds).values()) <= most:
            break
    return count(*kinds)


def test_streams_and_connections_that_end_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minga.network.rpc.node.LAST_WORDS_S", 0.1)  # of the carrier that TCP replaces

    async def main() -> None:
        book: dict[PeerId, Address] = {}
        here, there = await node(book), await node(book)
        for _ in range(5):
            await talk(here, there, Number(1))
            with contextlib.suppress(TimeoutError, RemoteError):
                await talk(here, there, Number(0))  # given up half-way
        ends_of_the_carrier = 2
        of_streams = await settled(MessageStream, IrohStream, TcpStream, most=ends_of_the_carrier)
        await there.disconnect(here.peer_id)
        of_connections = await settled(*LARGE)
        await here.close()
        await there.close()
        assert of_streams["MessageStream"] <= 1, of_streams
        assert of_streams["IrohStream"] + of_streams["TcpStream"] <= ends_of_the_carrier, of_streams
        assert max(of_connections.values()) <= 1, of_connections

    with no_collector():
        asyncio.run(main())


@virtually
async def test_rounds_that_are_over_are_freed() -> None:
    world, layout = World(3), VectorLayout((70_000,), "adaptive")
    rounds: list[weakref.ref[Round]] = []
    make = service.Round

    def made(*arguments: Any, **options: Any) -> Round:
        round = make(*arguments, **options)
        rounds.append(weakref.ref(round))
        return round

    await world.start()
    service.Round = made  # type: ignore[assignment,misc]
    try:
        with no_collector():
            await world.reduce(world.plan(layout), layout, [torch.ones(layout.total)] * 3, [1, 1, 1])
            await asyncio.sleep(1.0)
            for party in world.parties:
                party.all_reduce.retire()
            await asyncio.sleep(1.0)
            assert [each() for each in rounds] == [None] * 3
    finally:
        service.Round = make  # type: ignore[misc]
    await world.close()
