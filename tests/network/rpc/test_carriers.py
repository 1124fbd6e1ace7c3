"""Small messages share the carrier of their connection; it is replaced when it is lost, or a better way opens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from minga.core.errors import SilentError, UnreachableError
from minga.network.interface import Connection, PeerId, Stream
from minga.network.rpc import node as carriers
from minga.network.rpc.handshake import MULTIPLEX, Call, Hello
from minga.network.rpc.keepalive import PULSE_S
from minga.network.rpc.multiplexer import Multiplexer
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream
from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.simulated_peer import TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from tests.worlds.node_world import World
from tests.worlds.swarm_tools import make_spec, pull, vector_replica, virtually


class Note(msgspec.Struct, frozen=True):
    text: str


async def _echo(peer: PeerId, stream: MessageStream) -> None:
    del peer
    await stream.send(await stream.receive(Note))


class Opened:
    """Counts the streams of a connection, of which the first `detours` for bulk are detours."""

    def __init__(self, node: Node, peer: PeerId, detours: int = 0) -> None:
        self.streams: list[Stream] = []
        connection = connection_of(node, peer)
        plain = connection.open_stream

        async def counted(*, bulk: bool = False) -> Stream:
            stream = await plain(bulk=bulk)
            stream.is_detour = bulk and len(self.streams) < detours
            self.streams.append(stream)
            return stream

        connection.open_stream = counted  # type: ignore[method-assign]


def connection_of(node: Node, peer: PeerId) -> Connection:
    connection = node._connections.live(peer)
    assert connection is not None
    return connection


def carriers_of(node: Node, other: Node) -> list[Multiplexer]:
    return list(node._carriers[connection_of(node, other.peer_id)].present)


@asynccontextmanager
async def two(latency_s: float = 0.01) -> AsyncIterator[tuple[Node, Node]]:
    """Two nodes that echo; the second dialled the first."""
    world = World(latency_s)
    one, two = await world.node(), await world.node()
    for node in (one, two):
        node.serve("echo", _echo)
    try:
        yield one, two
    finally:
        for node in (one, two):
            await node.close()


async def echoed(node: Node, other: Node, text: str) -> str:
    return (await node.call(other.peer_id, "echo", Note(text), Note)).text


@virtually
async def test_calls_take_no_stream_of_their_own_from_the_first_on() -> None:
    async with two() as (one, other):
        counts = [Opened(one, other.peer_id), Opened(other, one.peer_id)]
        for caller, called in ((one, other), (other, one)):
            texts = [str(number) for number in range(20)]
            assert await asyncio.gather(*(echoed(caller, called, text) for text in texts)) == texts
        assert [len(each.streams) for each in counts] == [0, 0]


@virtually
async def test_a_stream_whose_hello_was_long_in_coming_is_a_carrier_too() -> None:
    """Signs of life go before it on the same stream, and none after it."""
    world = World()
    host = await world.node()
    host.serve("echo", _echo)
    check = host._check_guest

    async def slowly(hello: Hello, peer: PeerId) -> None:
        await asyncio.sleep(8.25 * PULSE_S)
        await check(hello, peer)

    host._check_guest = slowly  # type: ignore[method-assign]
    offences: list[str] = []
    guest = await world.node()
    for node in (host, guest):
        node.offend = lambda _, what: offences.append(what)  # type: ignore[method-assign]
    opened = Opened(guest, host.peer_id)
    assert await echoed(guest, host, "late") == "late"
    await asyncio.sleep(10 * PULSE_S)
    assert (opened.streams, offences) == ([], [])
    for node in (host, guest):
        await node.close()


@virtually
async def test_a_carrier_that_is_lost_is_replaced_by_who_dialled() -> None:
    async with two() as (one, other):
        await asyncio.sleep(0.1)
        opened = Opened(other, one.peer_id)
        for node, peer in ((one, other), (other, one)):
            carriers_of(node, peer)[0].give_up()
            await asyncio.sleep(carriers.FIRST_PAUSE_S * 3)
        assert len(opened.streams) == 2
        assert await echoed(one, other, "again") == "again"
        assert len(opened.streams) == 2


@virtually
async def test_a_stream_in_which_nothing_comes_takes_its_carrier_along() -> None:
    """The way may be the cause, and streams of their own would get through."""
    async with two() as (one, other):

        async def never(peer: PeerId, stream: MessageStream) -> None:
            del peer, stream
            await asyncio.Event().wait()

        one.serve("never", never)
        await asyncio.sleep(0.1)
        carriers_of(one, other)[0].outbox.put = lambda *frames, lazily=False: None  # type: ignore[method-assign]
        opened = Opened(other, one.peer_id)
        with pytest.raises(SilentError):
            await other.call(one.peer_id, "never", Note("hm"), Note, timeout_s=20.0)
        await asyncio.sleep(1.0)
        assert len(opened.streams) == 1
        assert await echoed(other, one, "again") == "again"


@virtually
async def test_a_carrier_on_a_detour_moves_once_the_better_way_is_open() -> None:
    async with two() as (one, other):
        await asyncio.sleep(0.1)
        opened = Opened(other, one.peer_id, detours=2)
        carriers_of(other, one)[0].give_up()
        await asyncio.sleep(carriers.FIRST_PAUSE_S * 2)
        async with one.open(other.peer_id, "echo") as before:
            await before.send(Note("on the detour"))
            await asyncio.sleep(3.5 * carriers.FIRST_DETOUR_S)
            assert [stream.is_detour for stream in opened.streams] == [True, True, False]
            assert (await before.receive(Note)).text == "on the detour"
        assert await echoed(one, other, "on the better way") == "on the better way"
        await asyncio.sleep(3 * carriers.LAST_WORDS_S)
        for node, peer in ((one, other), (other, one)):
            assert len(carriers_of(node, peer)) == 1
        assert await echoed(other, one, "on the better way") == "on the better way"
        assert len(opened.streams) == 3


@virtually
async def test_carriers_of_which_the_end_was_never_heard_are_given_up_for_their_successors() -> None:
    """A way over TCP breaks, the reset of what was on it is lost, and the connection survives."""
    async with two() as (one, other):
        offences: list[str] = []
        for node in (one, other):
            node.offend = lambda _, what: offences.append(what)  # type: ignore[method-assign]

        async def unheard() -> None:
            pass

        await asyncio.sleep(0.1)
        for count in range(1, carriers.MAX_CARRIERS + 1):
            assert len(carriers_of(one, other)) == count
            [multiplexer] = carriers_of(other, one)
            multiplexer._carrier.reset = unheard  # type: ignore[method-assign]
            other._carriers[connection_of(other, one.peer_id)].present[multiplexer].cancel()
            await asyncio.sleep(1.2)
        await asyncio.sleep(8 * carriers.LAST_WORDS_S)
        assert [len(carriers_of(*nodes)) for nodes in ((one, other), (other, one))] == [1, 1]
        assert await echoed(one, other, "again") == "again"
        assert offences == []


@virtually
async def test_a_request_that_nobody_reads_holds_no_other_up() -> None:
    async with two() as (one, other):
        release = asyncio.Event()

        async def slow(peer: PeerId, stream: MessageStream) -> None:
            del peer
            await release.wait()
            body = memoryview(bytearray(3 << 20))
            await stream.receive_bulk_into(body)
            await stream.send(Note(str(sum(body[:: 1 << 10]))))

        one.serve("slow", slow)
        await asyncio.sleep(0.1)
        async with other.open(one.peer_id, "slow") as stream:
            sending = asyncio.ensure_future(stream.send_bulk(b"\x01" * (3 << 20)))
            await asyncio.sleep(2.0)
            assert not sending.done()  # it waits for room
            assert await echoed(other, one, "quick") == "quick"
            release.set()
            assert (await stream.receive(Note)).text == str(3 << 10)
            await sending


@virtually
async def test_who_did_not_dial_opens_no_carrier_and_nobody_many() -> None:
    async with two() as (one, other):
        await asyncio.sleep(0.1)
        offences: list[str] = []
        for node in (one, other):
            node.offend = lambda _, what: offences.append(what)  # type: ignore[method-assign]

        async def ask(node: Node, peer: Node) -> Any:
            connection = connection_of(node, peer.peer_id)
            stream = node.wrap(await connection.open_stream(), connection)
            await stream.send(Call(MULTIPLEX))
            return stream

        stream = await ask(one, other)
        await asyncio.sleep(0.1)
        await stream.close()
        assert [what.partition(": ")[2] for what in offences] == ["it has no carrier to open"]
        asked = [await ask(other, one) for _ in range(carriers.MAX_CARRIERS)]
        with pytest.raises(UnreachableError):
            await asked[-1].receive(Note)
        assert len(carriers_of(one, other)) == carriers.MAX_CARRIERS
        for stream in asked:
            await stream.close()


@virtually
async def test_the_steps_of_a_small_model_open_no_stream() -> None:
    swarm = Swarm(make_spec(32), make_replica=vector_replica(2000), gradient=pull)
    for _ in range(3):
        swarm.add(HostSettings(latency_s=0.0005), TrainerSettings(1, 0.02))
    await swarm.run_until_step(5)
    nodes = [peer.session.node for peer in swarm.alive()]
    opened = [Opened(node, peer) for node in nodes for peer in node.connected()]
    await swarm.run_until_step(10)
    assert len(opened) == 3 * 2
    assert not [stream for each in opened for stream in each.streams]
    await swarm.close()
