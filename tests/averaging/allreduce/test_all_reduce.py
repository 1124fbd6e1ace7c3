from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minga.averaging.allreduce.messages import FETCH, PART, FetchChunks, PartHello
from minga.averaging.allreduce.round import RoundOutcome
from minga.averaging.allreduce.service import MAX_EXPECTING, RoundAbortedError
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.registry import CODECS as REGISTRY
from minga.averaging.codecs.residual import ContributionFate
from minga.averaging.messages import Plan
from minga.core.errors import RejectedError, RemoteError
from minga.network.rpc.handshake import Call
from minga.network.rpc.stream import MessageStream
from tests.worlds.nonzero_codec import ENTRY
from tests.worlds.reduce_world import ROUND, Party, World
from tests.worlds.swarm_tools import virtually

CODECS = ("float32", "float16", "bfloat16", "int8", "adaptive")
NUMELS = (70_000, 300, 5_000, 1)


def vectors_of(layout: VectorLayout, count: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(layout.total, generator=generator) * (1 + i) for i in range(count)]


def mean_of(vectors: list[torch.Tensor], weights: list[int]) -> torch.Tensor:
    total = sum(weights)
    return sum((v.double() * w for v, w in zip(vectors, weights, strict=True)), torch.tensor(0.0)) / total


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("clients", [0, 2])
def test_all_get_the_same_bits_and_they_are_the_weighted_mean(codec: str, clients: int) -> None:
    @virtually
    async def main() -> None:
        layout, weights = VectorLayout(NUMELS, codec), [7, 1, 12, 3, 4]
        world = World(5, clients=clients)
        await world.start()
        vectors = vectors_of(layout, 5)
        results, outcomes = await world.reduce(world.plan(layout), layout, list(vectors), weights)
        await world.close()
        for index, (party, outcome) in enumerate(zip(world.parties, outcomes, strict=True)):
            assert isinstance(outcome, RoundOutcome)
            assert outcome.lost == {}
            assert outcome.fate is ContributionFate.COUNTED, "of a client, too, which reduces nothing and is not told"
            others = {other.peer_id: w for other, w in zip(world.parties, weights, strict=True) if other is not party}
            assert outcome.heard == (others if index < 5 - clients else {})
        assert all(torch.equal(result, results[0]) for result in results)
        error = (results[0].double() - mean_of(vectors, weights)).abs()
        bound = {"float32": 2e-6, "float16": 0.02, "bfloat16": 0.2, "int8": 0.3, "adaptive": 0.3}[codec]
        assert error.max() < bound
        assert error.mean() < bound / 10

    main()


@settings(deadline=None, max_examples=12)
@given(
    numels=st.lists(st.integers(1, 3000), min_size=1, max_size=4),
    weights=st.lists(st.integers(0, 9), min_size=2, max_size=5).filter(any),
    codec=st.sampled_from(CODECS),
    clients=st.integers(0, 1),
    seed=st.integers(0, 1000),
)
def test_any_layout_and_any_weights(numels: list[int], weights: list[int], codec: str, clients: int, seed: int) -> None:
    @virtually
    async def main() -> None:
        layout, count = VectorLayout(tuple(numels), codec), len(weights)
        world = World(count, clients=clients, seed=seed)
        await world.start()
        vectors = vectors_of(layout, count, seed)
        given_vectors = [v if w else None for v, w in zip(vectors, weights, strict=True)]
        results, _ = await world.reduce(world.plan(layout, chunk_bytes=1024), layout, given_vectors, weights)
        await world.close()
        assert all(torch.equal(result, results[0]) for result in results)
        assert torch.allclose(results[0].double(), mean_of(vectors, weights), atol=0.5)
        assert all(party.offences() == [] for party in world.parties)

    main()


def test_a_round_of_which_nobody_has_samples_is_void() -> None:
    @virtually
    async def main() -> None:
        layout = VectorLayout((5000,), "float16")
        world = World(4, clients=1)
        await world.start()
        _, outcomes = await world.reduce(world.plan(layout), layout, [None] * 4, [0] * 4)
        assert all(isinstance(outcome, RoundAbortedError) for outcome in outcomes)
        assert any("nobody's samples" in str(outcome) for outcome in outcomes)
        assert all(party.offences() == [] for party in world.parties)
        await world.close()

    main()


# ---- a member that lies: the last party speaks the protocol by hand

Lie = Callable[[MessageStream, VectorLayout, Plan], Awaitable[None]]


def test_encodings_of_any_length_and_means_by_another_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTRY._builtin, "nonzero", ENTRY)

    async def reduced(upload: str, download: str | None) -> tuple[torch.Tensor, int]:
        layout, weights = VectorLayout((9_000,), upload, download), [7, 1, 12]
        world = World(3)
        await world.start()
        vectors = [vector * (torch.arange(9_000) % 9 == 0) for vector in vectors_of(layout, 3)]
        results, outcomes = await world.reduce(world.plan(layout), layout, list(vectors), weights)
        await world.close()
        assert all(isinstance(outcome, RoundOutcome) for outcome in outcomes)
        assert all(torch.equal(result, results[0]) for result in results)
        return results[0], sum(party.node.traffic()[0] for party in world.parties)

    @virtually
    async def main() -> None:
        plain, plain_bytes = await reduced("float32", None)
        same, sparse_bytes = await reduced("nonzero", None)
        assert torch.allclose(same, plain, rtol=1e-6)
        assert sparse_bytes < plain_bytes / 3
        rounded, mixed_bytes = await reduced("nonzero", "float16")
        assert torch.equal(rounded, same.half().float())
        assert sparse_bytes < mixed_bytes < plain_bytes

    main()


LAYOUT = VectorLayout((9_000,), "float16")


async def say(stream: MessageStream, weight: int = 5, round_id: str = ROUND, part: int = 0) -> None:
    await stream.send(PartHello(round_id, (0, part), weight))


async def send_nan(stream: MessageStream, layout: VectorLayout, plan: Plan) -> None:
    await say(stream)
    await stream.send_bulk(struct.pack("<e", float("nan")) * plan.parts[0].stop)


async def send_too_little(stream: MessageStream, layout: VectorLayout, plan: Plan) -> None:
    await say(stream)
    await stream.send_bulk(bytes(2 * plan.parts[0].stop - 2))


async def send_too_much(stream: MessageStream, layout: VectorLayout, plan: Plan) -> None:
    await say(stream)
    await stream.send_bulk(bytes(1 << 24))


async def send_a_message_instead(stream: MessageStream, layout: VectorLayout, plan: Plan) -> None:
    await say(stream)
    await stream.send(FetchChunks(ROUND, (0,)))


async def weigh_too_much(stream: MessageStream, layout: VectorLayout, plan: Plan) -> None:
    await say(stream, weight=1 << 30)  # too much where three send, though not of one
    await stream.send_bulk(bytes(2 * plan.parts[0].stop))


async def weigh_less_than_nothing(stream: MessageStream, layout: VectorLayout, plan: Plan) -> None:
    await stream._send_frame(0, msgspec.msgpack.encode({"round_id": ROUND, "assignment": [0, 0], "weight": -1}))


LIES = [
    send_nan,
    send_too_little,
    send_too_much,
    send_a_message_instead,
    weigh_too_much,
    weigh_less_than_nothing,
]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_lying_sender_is_named_and_left_out(lie: Lie) -> None:
    @virtually
    async def main() -> None:
        world = World(4)
        await world.start()
        vectors, weights, plan = vectors_of(LAYOUT, 4), [3, 4, 5, 6], world.plan(LAYOUT)
        liar, victim = world.parties[3], world.parties[0]

        async def tell_the_lie() -> None:
            try:
                async with liar.node.open(victim.peer_id, PART) as stream:
                    await lie(stream, LAYOUT, plan)
                    await stream.receive_bulk_into(memoryview(bytearray(2 * plan.parts[0].stop)))
            except RemoteError:
                pass

        telling = liar.network.process.run(tell_the_lie())
        results, outcomes = await world.reduce(plan, LAYOUT, list(vectors), weights, who=[0, 1, 2])
        await telling
        assert all(isinstance(outcome, RoundOutcome) for outcome in outcomes)
        assert all(torch.equal(result, results[0]) for result in results)
        assert torch.allclose(results[0].double(), mean_of(vectors[:3], weights[:3]), atol=0.02)
        assert [peer for peer, _ in victim.offences()] == [liar.peer_id]
        assert all(peer == liar.peer_id for party in world.parties[:3] for peer, _ in party.offences())
        await world.close()

    main()


def test_a_lying_aggregator_is_named_and_replaced() -> None:
    @virtually
    async def main() -> None:
        world = World(4)
        await world.start()
        vectors, weights, plan = vectors_of(LAYOUT, 4), [3, 4, 5, 6], world.plan(LAYOUT)
        liar = world.parties[3]

        async def answer_nan(peer: str, stream: MessageStream) -> None:
            await stream.receive(PartHello)
            size = plan.parts[3].stop - plan.parts[2].stop
            await stream.send_bulk(struct.pack("<e", float("nan")) * size)
            await stream.drain()  # a reset could overtake what was sent

        liar.node.serve(PART, answer_nan)
        results, outcomes = await world.reduce(plan, LAYOUT, list(vectors), weights, who=[0, 1, 2])
        assert all(isinstance(outcome, RoundOutcome) and liar.peer_id in outcome.lost for outcome in outcomes)
        assert all(torch.equal(result, results[0]) for result in results)
        assert torch.allclose(results[0].double(), mean_of(vectors[:3], weights[:3]), atol=0.02)
        blamed = {peer for party in world.parties[:3] for peer, _ in party.offences()}
        assert blamed == {liar.peer_id}
        await world.close()

    main()


async def _ask(world: World, asker: Party, method: str, message: msgspec.Struct) -> BaseException | None:
    async def ask() -> None:
        async with asker.node.open(world.parties[0].peer_id, method) as stream:
            await stream.send(message)
            await stream.receive_bulk_into(memoryview(bytearray(4)))

    try:
        await asker.network.process.run(ask())
    except RemoteError as error:
        return error
    return None


def test_strangers_and_old_rounds_are_sent_away() -> None:
    @virtually
    async def main() -> None:
        layout = VectorLayout((40,), "float32")
        world = World(3)
        await world.start()
        inside, stranger = world.parties[:2], world.parties[2]
        world.parties = inside
        plan = world.plan(layout)
        await world.reduce(plan, layout, list(vectors_of(layout, 2)), [1, 1])
        error = await _ask(world, stranger, FETCH, FetchChunks(ROUND, (0,)))
        assert error is not None
        assert inside[0].offences() == [(stranger.peer_id, inside[0].offences()[0][1])]
        assert "no member of that round" in inside[0].offences()[0][1]
        # out of range
        await _ask(world, inside[1], FETCH, FetchChunks(ROUND, (99_999,)))
        assert "chunks that the plan does not have" in inside[0].offences()[1][1]
        # a round that nobody has heard of, and one that is over
        error = await _ask(world, inside[1], FETCH, FetchChunks("f" * 32, (0,)))
        assert isinstance(error, RejectedError)
        assert "unknown" in error.message
        for party in inside:
            party.all_reduce.retire()
        error = await _ask(world, inside[1], FETCH, FetchChunks(ROUND, (0,)))
        assert isinstance(error, RejectedError)
        assert "over" in error.message
        # a replayed part
        error = await _ask(world, inside[1], PART, PartHello(ROUND, (0, 0), 5))
        assert isinstance(error, RejectedError)
        await stranger.node.close()
        await world.close()

    main()


def test_a_second_stream_for_one_part_is_refused() -> None:
    @virtually
    async def main() -> None:
        world = World(3)
        await world.start()
        plan, vectors = world.plan(LAYOUT), vectors_of(LAYOUT, 3)
        task = asyncio.ensure_future(world.reduce(plan, LAYOUT, list(vectors), [1, 1, 1], who=[0, 1]))

        async def twice() -> None:
            liar = world.parties[2]
            async with liar.node.open(world.parties[0].peer_id, PART) as first:
                await say(first)
                await first.send_bulk(bytes(2 * plan.parts[0].stop))
                async with liar.node.open(world.parties[0].peer_id, PART) as second:
                    await say(second)
                    with pytest.raises(RemoteError):
                        await second.receive_bulk_into(memoryview(bytearray(2 * plan.parts[0].stop)))

        await world.parties[2].network.process.run(twice())
        results, _ = await task
        assert torch.equal(results[0], results[1])
        assert "a second stream" in world.parties[0].offences()[0][1]
        await world.close()

    main()


idling = pytest.mark.parametrize("announced", [b"", b"\x01\x00\x00\x10\x00"], ids=["silent", "announces a chunk"])


@idling
def test_a_sender_that_is_alive_but_sends_nothing_is_left_out(announced: bytes) -> None:
    @virtually
    async def main() -> None:
        world = World(4)
        await world.start()
        plan, vectors, idler = world.plan(LAYOUT), vectors_of(LAYOUT, 4), world.parties[3]

        async def greet_only(index: int) -> None:
            async with idler.node.open(world.parties[index].peer_id, PART) as stream:
                await say(stream, part=index)
                await stream._stream.write(announced)
                await asyncio.sleep(300.0)

        tasks = [idler.network.process.run(greet_only(index)) for index in range(3)]
        results, outcomes = await world.reduce(plan, LAYOUT, list(vectors), [3, 4, 5, 6], who=[0, 1, 2])
        assert all(isinstance(outcome, RoundOutcome) and idler.peer_id in outcome.lost for outcome in outcomes)
        assert torch.allclose(results[0].double(), mean_of(vectors[:3], [3, 4, 5]), atol=0.02)
        assert asyncio.get_running_loop().time() < 60.0
        for task in tasks:
            task.cancel()
        await world.close()

    main()


@idling
def test_an_aggregator_that_takes_everything_and_returns_nothing_is_replaced(announced: bytes) -> None:
    @virtually
    async def main() -> None:
        world = World(4)
        await world.start()
        vectors, weights, plan = vectors_of(LAYOUT, 4), [3, 4, 5, 6], world.plan(LAYOUT)
        idler = world.parties[3]

        async def take(peer: str, stream: MessageStream) -> None:
            await stream.receive(PartHello)
            await stream.receive_bulk_into(memoryview(bytearray(2 * (plan.parts[3].stop - plan.parts[2].stop))))
            await stream._stream.write(announced)
            await asyncio.sleep(300.0)

        idler.node.serve(PART, take)
        results, outcomes = await world.reduce(plan, LAYOUT, list(vectors), weights, who=[0, 1, 2])
        assert all(isinstance(outcome, RoundOutcome) for outcome in outcomes)
        assert all(torch.equal(result, results[0]) for result in results)
        assert torch.allclose(results[0].double(), mean_of(vectors[:3], weights[:3]), atol=0.02)
        assert asyncio.get_running_loop().time() < 60.0
        await world.close()

    main()


@virtually
async def test_few_requests_of_one_peer_wait_for_a_plan_at_a_time() -> None:
    world = World(2)
    await world.start()
    requests = [FetchChunks(f"{number:032x}", (0,)) for number in range(3 * MAX_EXPECTING)]
    answers = await asyncio.gather(*(_ask(world, world.parties[1], FETCH, request) for request in requests))
    reasons = [str(answer) for answer in answers]
    assert sum("too many" in reason for reason in reasons) == 2 * MAX_EXPECTING
    assert sum("unknown" in reason for reason in reasons) == MAX_EXPECTING
    assert await _ask(world, world.parties[1], FETCH, requests[0]) is not None  # and later ones may wait again
    assert not world.parties[0].all_reduce._expecting
    await world.close()


def test_numbers_that_cannot_be_sent_end_the_round_of_their_owner_alone() -> None:
    @virtually
    async def main() -> None:
        world = World(4)
        await world.start()
        layout = VectorLayout((4000,), "float16")
        vectors = [torch.ones(4000) for _ in range(4)]
        vectors[2][0] = torch.inf  # in the part of member 0
        begun = asyncio.get_running_loop().time()
        _, outcomes = await world.reduce(world.plan(layout), layout, vectors, [1] * 4)
        assert isinstance(outcomes[2], RoundAbortedError)
        assert "cannot be sent" in str(outcomes[2])
        assert all(isinstance(outcomes[i], RoundOutcome) for i in (0, 1, 3))
        assert asyncio.get_running_loop().time() - begun < 10.0, "nobody waits until it is idle for too long"
        await world.close()

    main()


def test_garbage_on_every_method_of_the_service() -> None:
    @virtually
    async def main() -> None:
        layout = VectorLayout((40,), "float32")
        world = World(2)
        await world.start()
        await world.reduce(world.plan(layout), layout, list(vectors_of(layout, 2)), [1, 1])
        liar, victim = world.parties[1], world.parties[0]
        methods = [name for name in sorted(victim.node._handlers) if name.startswith("round.")]
        for method in methods:
            connection = await liar.node.connection(victim.peer_id)
            stream = liar.node.wrap(await connection.open_stream(), connection)
            await stream.send(Call(method))
            await stream._send_frame(0, b"\x93\x01\x02\x03")
            with pytest.raises(RemoteError):
                await stream.receive(FetchChunks)
            await stream.close()
        assert len(victim.offences()) == len(methods) > 3
        assert {peer for peer, _ in victim.offences()} == {liar.peer_id}
        await world.close()

    main()
