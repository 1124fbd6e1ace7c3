from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest

from minga.core.errors import (
    ClosedError,
    ProtocolError,
    RejectedError,
    RemoteError,
    SilentError,
    StorageError,
    UnreachableError,
)
from minga.core.refusal_code import RefusalCode
from minga.network.interface import Address, PeerId
from minga.network.rpc import connections
from minga.network.rpc import node as nodes
from minga.network.rpc.connections import MAX_OFFENCES, MAX_OFFENDERS, OFFENCE_MEMORY_S
from minga.network.rpc.handshake import Call
from minga.network.rpc.node import BRIEF_DIAL_S, HELLO_TIMEOUT_S, MAX_STREAMS_PER_PEER
from minga.network.rpc.stream import MessageStream
from tests.worlds.reduce_world import Party, World
from tests.worlds.swarm_tools import virtually


class Number(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    value: int


async def double(peer: PeerId, stream: MessageStream) -> None:
    request = await stream.receive(Number)
    if request.value < 0:
        raise RejectedError("only what is there can be doubled", code=RefusalCode.ABSENT)
    await stream.send(Number(2 * request.value))


async def two(**host: Any) -> tuple[World, Party, Party]:
    world = World(2, **host)
    await world.start()
    first, second = world.parties
    second.node.serve("double", double)
    return world, first, second


@virtually
async def test_calls_refusals_and_unknown_methods() -> None:
    world, first, second = await two()
    assert await first.node.call(second.peer_id, "double", Number(21), Number) == Number(42)
    with pytest.raises(RejectedError, match="only what is there") as caught:
        await first.node.call(second.peer_id, "double", Number(-1), Number)
    assert (caught.value.code, caught.value.peer) == (RefusalCode.ABSENT, second.peer_id)
    with pytest.raises(RejectedError, match="no such method: treble"):
        await first.node.call(second.peer_id, "treble", Number(1), Number)
    assert first.node.connected() == [second.peer_id]
    assert second.offences() == []
    await world.close()


@virtually
async def test_peers_that_are_drawn_are_connected_and_fit() -> None:
    world = World(5)
    await world.start()
    first, *others = world.parties
    ids = {other.peer_id for other in others}
    for other in others:
        await first.node.connection(other.peer_id)
    draws = [first.node.draw_connected(2, random.Random(seed), lambda _: True) for seed in range(40)]
    assert {peer for drawn in draws for peer in drawn} == ids
    assert all(len(set(drawn)) == 2 for drawn in draws)
    await others[0].node.disconnect(first.peer_id)
    await asyncio.sleep(1.0)
    others_left, refused = ids - {others[0].peer_id}, others[1].peer_id
    assert set(first.node.draw_connected(9, random.Random(1), lambda _: True)) == others_left
    assert set(first.node.draw_connected(9, random.Random(1), lambda peer: peer != refused)) == others_left - {refused}
    await first.node.connection(others[0].peer_id)
    assert set(first.node.draw_connected(9, random.Random(1), lambda _: True)) == ids
    await world.close()


@virtually
async def test_either_side_may_call_over_a_connection_that_a_client_dialled() -> None:
    world = World(2, clients=1)
    await world.start()
    server, client = world.parties
    client.node.serve("double", double)
    assert await server.node.call(client.peer_id, "double", Number(4), Number) == Number(8)
    await client.node.disconnect(server.peer_id)
    await asyncio.sleep(1.0)
    with pytest.raises(UnreachableError, match="no address to dial"):
        await server.node.call(client.peer_id, "double", Number(4), Number)
    await world.close()


@virtually
async def test_simultaneous_calls_share_one_dial() -> None:
    world, first, second = await two()
    answers = await asyncio.gather(*(first.node.call(second.peer_id, "double", Number(i), Number) for i in range(20)))
    assert [answer.value for answer in answers] == [2 * i for i in range(20)]
    assert [e.kind for e in first.log].count("peer.connected") == 1
    await world.close()


@virtually
async def test_a_dial_does_not_wait_for_one_to_an_address_that_the_peer_had_before() -> None:
    world, first, second = await two()
    before = asyncio.ensure_future(first.node.dial(Address(second.peer_id, ("10.9.9.9:1",))))
    await asyncio.sleep(0.1)
    async with asyncio.timeout(1.0):
        await first.node.dial(second.network.address)
    assert not before.done()
    with pytest.raises(UnreachableError):
        await before
    assert first.node.is_connected(second.peer_id)
    await world.close()


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"versions": (4, 9)}, "version", "have none in common; update minga on the older side"),
        ({"versions": (1, 1)}, "version", "have none in common"),
        ({"run_id": "other"}, "run", "that peer is in another run"),
    ],
)
def test_who_does_not_fit_is_told_so(change: dict[str, Any], code: str, words: str) -> None:
    @virtually
    async def main() -> None:
        world, first, second = await two()
        hello = first.node._hello()
        first.node._hello = lambda: msgspec.structs.replace(hello, **change)  # type: ignore[method-assign]
        with pytest.raises(RejectedError, match=words) as caught:
            await first.node.dial(second.network.address)
        assert caught.value.code == code
        await asyncio.sleep(1.0)
        assert second.log[-1].kind == "peer.turned_away"
        assert first.node.connected() == second.node.connected() == []
        await world.close()

    main()


@virtually
async def test_a_dialler_that_rejects_the_other_side_hangs_up() -> None:
    world, first, second = await two()
    hello = second.node._hello()
    second.node._hello = lambda: msgspec.structs.replace(hello, run_id="other")  # type: ignore[method-assign]
    with pytest.raises(RejectedError, match="another run"):
        await first.node.dial(second.network.address)
    await asyncio.sleep(1.0)
    assert first.node.connected() == second.node.connected() == []
    await world.close()


@virtually
async def test_versions_overlap() -> None:
    world, first, second = await two()
    hello = first.node._hello()
    first.node._hello = lambda: msgspec.structs.replace(hello, versions=(0, 7))  # type: ignore[method-assign]
    await first.node.dial(second.network.address)
    assert second.node.connected() == [first.peer_id]
    await world.close()


@pytest.mark.parametrize("garbage", [b"", b"\x00\x00\x00\x00\x02\x81\x01"])
def test_garbage_instead_of_a_hello(garbage: bytes) -> None:
    @virtually
    async def main() -> None:
        world, first, second = await two()
        connection = await first.network.connect(second.network.address)
        stream = await connection.open_stream()
        await stream.write(garbage)
        await stream.finish()
        await asyncio.sleep(15.0)  # one that says nothing at all is sent away after ten seconds
        assert connection.is_closed
        assert second.node.connected() == []
        assert second.log[-1].kind == "peer.turned_away"
        await connection.close()
        assert await first.node.call(second.peer_id, "double", Number(1), Number) == Number(2)
        await world.close()

    main()


@virtually
async def test_a_peer_is_dialled_where_another_one_says_that_it_is() -> None:
    world, first, second = await two()
    first.node._lookup = lambda _: None
    with pytest.raises(UnreachableError, match="no address"):
        await first.node.call(second.peer_id, "double", Number(1), Number)
    first.node.introduce([second.network.address])
    assert await first.node.call(second.peer_id, "double", Number(4), Number) == Number(8)
    await world.close()


@virtually
async def test_who_knows_an_address_dials_it_whatever_others_say() -> None:
    world, first, second = await two()
    first.node.introduce([Address(second.peer_id, ("10.9.9.9:1",))])
    assert await first.node.call(second.peer_id, "double", Number(4), Number) == Number(8)
    await world.close()


@virtually
async def test_nobody_answers() -> None:
    world, first, second = await two()
    with pytest.raises(UnreachableError):
        await first.node.dial(Address(second.peer_id, ("10.9.9.9:1",)))
    with pytest.raises(UnreachableError):  # somebody else does
        await first.node.dial(Address(PeerId("0" * 64), second.network.address.direct))
    with pytest.raises(UnreachableError, match="no address"):
        await first.node.call(PeerId("1" * 64), "double", Number(1), Number)
    await world.close()
    with pytest.raises(ClosedError):
        await first.node.call(second.peer_id, "double", Number(1), Number)


@virtually
async def test_who_dials_while_the_node_is_closed_is_told_so_and_not_cancelled() -> None:
    world, first, second = await two()
    dialling = asyncio.ensure_future(first.node.dial(Address(PeerId("1" * 64), ("10.9.9.9:1",))))
    await asyncio.sleep(0.1)
    await first.node.close()
    with pytest.raises(ClosedError):
        await dialling
    with pytest.raises(ClosedError):
        await first.node.dial(second.network.address)
    await world.close()


@pytest.mark.parametrize("fault", ["stall", "kill"])
def test_a_peer_that_falls_silent_in_a_call(fault: str) -> None:
    @virtually
    async def main() -> None:
        world, first, second = await two()

        async def think(peer: PeerId, stream: MessageStream) -> None:
            await stream.receive(Number)
            await asyncio.sleep(60.0)
            await stream.send(Number(0))

        second.node.serve("think", think)
        slow = asyncio.ensure_future(first.node.call(second.peer_id, "think", Number(1), Number))
        await asyncio.sleep(20.0)
        assert not slow.done()  # it thinks, and gives signs of life
        begun = asyncio.get_running_loop().time()
        getattr(world.internet, fault)(second.network)
        with pytest.raises(SilentError):
            await slow
        assert asyncio.get_running_loop().time() - begun < 2.5
        if fault == "stall":
            world.internet.resume(second.network)
        await world.close()

    main()


@virtually
async def test_a_peer_whose_process_ended_is_not_waited_for_until_a_new_one_comes() -> None:
    world, first, second = await two()
    second.node.serve("think", never)
    loop = asyncio.get_running_loop()
    pending = asyncio.ensure_future(first.node.call(second.peer_id, "think", Number(1), Number))
    await asyncio.sleep(1.0)
    world.internet.kill(second.network, is_noticed=True)
    begun = loop.time()
    with pytest.raises(UnreachableError, match="its process has ended"):
        await pending
    assert loop.time() - begun < 0.6
    assert first.node.has_just_ended(second.peer_id)
    begun = loop.time()
    with pytest.raises(UnreachableError, match="its process has ended"):
        await first.node.call(second.peer_id, "double", Number(1), Number)
    assert loop.time() == begun, "nobody dials it"
    await asyncio.sleep(connections.JUST_ENDED_S)
    assert not first.node.has_just_ended(second.peer_id)
    begun = loop.time()
    with pytest.raises(UnreachableError):
        await first.node.call(second.peer_id, "double", Number(1), Number)
    assert loop.time() - begun <= BRIEF_DIAL_S
    restarted = Party(
        world.internet.host(name=second.network.state.name, private_key=second.network.private_key), world.book
    )
    restarted.node.serve("double", double)
    restarted.network.process.context.run(restarted.node.start)
    await restarted.network.process.run(restarted.node.connection(first.peer_id))
    assert await first.node.call(second.peer_id, "double", Number(4), Number) == Number(8)
    await restarted.node.close()
    await world.close()


async def never(peer: PeerId, stream: MessageStream) -> None:
    await stream.receive(Number)
    await asyncio.sleep(1e6)


@pytest.mark.parametrize("bound", [{}, {"timeout_s": 5.0}])
def test_signs_of_life_do_not_replace_an_answer_for_ever(bound: dict[str, float]) -> None:
    @virtually
    async def main() -> None:
        world, first, second = await two()
        second.node.serve("never", never)
        await first.node.connection(second.peer_id)
        begun = asyncio.get_running_loop().time()
        with pytest.raises(SilentError, match=r"no answer to 'never' within \d+ s") as caught:
            await first.node.call(second.peer_id, "never", Number(1), Number, **bound)
        assert caught.value.peer == second.peer_id
        assert asyncio.get_running_loop().time() - begun == pytest.approx(bound.get("timeout_s", 30.0), abs=0.5)
        assert second.node._served  # the other side learns of it next
        await asyncio.sleep(1.0)
        assert await first.node.call(second.peer_id, "double", Number(1), Number) == Number(2)
        await world.close()

    main()


@virtually
async def test_time_in_which_the_caller_was_stalled_does_not_count_against_the_answer() -> None:
    world, first, second = await two()

    async def think(peer: PeerId, stream: MessageStream) -> None:
        await stream.receive(Number)
        await asyncio.sleep(12.0)
        await stream.send(Number(7))

    second.node.serve("think", think)
    call = first.network.process.run(first.node.call(second.peer_id, "think", Number(1), Number, timeout_s=8.0))
    await asyncio.sleep(2.0)
    world.internet.stall(first.network)
    await asyncio.sleep(11.0)
    world.internet.resume(first.network)
    assert await call == Number(7)
    await world.close()


@virtually
async def test_a_third_connection_of_one_peer_takes_the_place_of_the_oldest() -> None:
    world, first, second = await two()
    made = [await first.node._dial(second.network.address) for _ in range(5)]
    await asyncio.sleep(1.0)
    assert [connection.is_closed for connection in made] == [True, True, True, False, False]
    assert second.node.connected() == [first.peer_id]
    assert await first.node.call(second.peer_id, "double", Number(1), Number) == Number(2)
    assert [e.kind for e in second.log].count("peer.disconnected") == 0
    await world.close()


def test_who_finds_no_room_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_PEERS", 2)

    @virtually
    async def main() -> None:
        world = World(4)
        await world.start()
        host, one, two, three = world.parties
        for guest in (one, two):
            await guest.node.dial(host.network.address)
        with pytest.raises(RejectedError, match="too many peers are connected already") as caught:
            await three.node.dial(host.network.address)
        assert caught.value.code == RefusalCode.FULL
        await one.node._dial(host.network.address)  # whoever is in may come by another way, too
        await two.node.disconnect(host.peer_id)
        await asyncio.sleep(1.0)
        await three.node.dial(host.network.address)
        assert host.node.connected() == sorted([one.peer_id, three.peer_id])
        await host.node.dial(two.network.address)  # a dial of one's own is not refused
        await world.close()

    main()


def test_strangers_that_never_say_hello_are_few_and_do_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "MAX_WAITING", 4)

    @virtually
    async def main() -> None:
        world, first, second = await two()
        strangers = [world.internet.host() for _ in range(10)]
        made = []
        for stranger in strangers:
            made.append(await stranger.connect(second.network.address))
            await asyncio.sleep(0.1)
            assert len(second.node._waiting) <= 4
        assert [connection.is_closed for connection in made] == [True] * 6 + [False] * 4
        assert await first.node.call(second.peer_id, "double", Number(1), Number) == Number(2)
        await asyncio.sleep(HELLO_TIMEOUT_S)
        assert all(connection.is_closed for connection in made)
        assert not second.node._waiting
        assert second.node.connected() == [first.peer_id]
        await world.close()

    main()


@virtually
async def test_signs_of_life_are_no_hello() -> None:
    world, first, second = await two()
    connection = await first.network.connect(second.network.address)
    stream = first.node.wrap(await connection.open_stream(), connection)
    await stream.send_bulk(b"")  # opens the stream
    mute = await first.network.connect(second.network.address)
    pulsing = first.node.wrap(await mute.open_stream(), mute)
    await pulsing._write(b"\x03\0\0\0\x02")
    await asyncio.sleep(HELLO_TIMEOUT_S - 1.0)
    assert connection.is_closed
    assert not mute.is_closed
    await asyncio.sleep(2.0)
    assert mute.is_closed
    assert second.node.connected() == []
    await world.close()


@virtually
async def test_nothing_grows_with_the_number_of_strangers() -> None:
    world, first, second = await two()
    for number in range(MAX_OFFENDERS + 100):
        second.node.offend(PeerId(f"{number:064x}"), "nonsense")
    assert len(second.node._misbehaviour) == MAX_OFFENDERS
    for _ in range(MAX_OFFENCES):
        second.node.offend(first.peer_id, "nonsense")
    with pytest.raises(RejectedError, match="cut off"):
        await first.node.dial(second.network.address)
    await world.close()


@virtually
async def test_guests_leave_no_trace_but_their_clocks() -> None:
    world, _, second = await two()
    for _ in range(20):
        guest = Party(world.internet.host(), world.book)
        guest.node.start()
        await guest.node.call(second.peer_id, "double", Number(1), Number)
        await guest.node.close()
    await asyncio.sleep(1.0)
    assert len(second.node._connections) == 0
    assert second.node._served == {}
    assert not second.node._waiting
    await world.close()


@virtually
async def test_repeated_offenders_are_cut_off_for_a_while() -> None:
    world, first, second = await two()
    await first.node.connection(second.peer_id)
    for _ in range(MAX_OFFENCES):
        async with first.node.open(second.peer_id, "double") as stream:
            await stream._send_frame(0, b"\xc1")
            with pytest.raises(RemoteError):
                await stream.receive(Number)
    await asyncio.sleep(1.0)
    assert len(second.offences()) == MAX_OFFENCES
    assert [e.kind for e in second.log].count("peer.cut_off") == 1
    assert second.node.connected() == []
    with pytest.raises(RejectedError, match="cut off") as caught:
        await first.node.dial(second.network.address)
    assert caught.value.code == RefusalCode.CUT_OFF
    await asyncio.sleep(OFFENCE_MEMORY_S)
    assert await first.node.call(second.peer_id, "double", Number(1), Number) == Number(2)
    await world.close()


@virtually
async def test_streams_at_once_are_limited() -> None:
    world, first, second = await two()
    release = asyncio.Event()

    async def hold(peer: PeerId, stream: MessageStream) -> None:
        await release.wait()

    second.node.serve("hold", hold)
    connection = await first.node.connection(second.peer_id)
    await asyncio.sleep(1.0)  # the carrier of small messages is there
    streams = []
    for _ in range(MAX_STREAMS_PER_PEER + 3):
        stream = first.node.wrap(await connection.open_stream(), connection)
        await stream.send(Call("hold"))
        streams.append(stream)
    await asyncio.sleep(1.0)
    assert [what for _, what in second.offences()] == ["too many streams at once"] * 3
    assert second.node._served[first.peer_id] == MAX_STREAMS_PER_PEER
    release.set()
    for stream in streams:
        await stream.close()
    await asyncio.sleep(3.0)
    assert second.node._served == {}
    assert await first.node.call(second.peer_id, "double", Number(1), Number) == Number(2)
    await world.close()


@virtually
async def test_a_handler_that_fails_harms_nobody_else() -> None:
    world, first, second = await two()

    async def answer_late(peer: PeerId, stream: MessageStream) -> None:
        await stream.receive(Number)
        raise UnreachableError("somebody further on is gone")

    second.node.serve("late", answer_late)
    with pytest.raises(RemoteError):
        await first.node.call(second.peer_id, "late", Number(1), Number)
    assert await first.node.call(second.peer_id, "double", Number(1), Number) == Number(2)
    assert second.offences() == []
    await world.close()


def test_what_this_machine_refuses_a_background_task_is_said_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async def store() -> None:
        raise StorageError("the disk is full")

    @virtually
    async def main() -> None:
        world, first, _ = await two()
        await first.node.spawn(store())
        assert [record.message for record in caplog.records] == ["a background task failed: the disk is full"]
        await world.close()

    main()


@virtually
async def test_a_refusal_in_the_place_of_the_end_is_no_offence() -> None:
    """Gossip asks for nothing but the end: it accused each `minga doctor`, which has no board, and cut it off."""
    world, first, second = await two()
    for _ in range(MAX_OFFENCES):
        async with first.node.open(second.peer_id, "treble") as stream:
            await stream.send(Number(1))
            await stream.finish()
            with pytest.raises(RejectedError, match="no such method: treble"):
                await stream.receive_end()
    assert (first.offences(), second.offences()) == ([], [])
    assert first.node.connected() == [second.peer_id]
    await world.close()


@virtually
async def test_a_reply_of_the_wrong_type_is_an_offence() -> None:
    world, first, second = await two()

    async def lie(peer: PeerId, stream: MessageStream) -> None:
        await stream.receive(Number)
        await stream.send(Call("what?"))

    second.node.serve("lie", lie)
    with pytest.raises(ProtocolError, match="malformed"):
        await first.node.call(second.peer_id, "lie", Number(1), Number)
    assert [peer for peer, _ in first.offences()] == [second.peer_id]
    await world.close()
