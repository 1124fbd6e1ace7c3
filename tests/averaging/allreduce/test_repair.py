"""Rounds in which members die, stand still or lose a link, without trainers around them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minga.averaging.allreduce import round as waiting
from minga.averaging.allreduce import sender
from minga.averaging.allreduce.messages import (
    FREEZE,
    LOST,
    REPAIR,
    Assignment,
    ChunkMap,
    Done,
    Freeze,
    Lost,
    Repair,
)
from minga.averaging.allreduce.repair import Repairer
from minga.averaging.allreduce.round import Round, RoundOutcome, chunk_table, unpack_bitmap
from minga.averaging.allreduce.service import RoundAbortedError
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.residual import Encoder
from minga.averaging.messages import MAX_TERM, Part
from minga.core.errors import RemoteError
from tests.worlds.reduce_world import ROUND, Party, World
from tests.worlds.swarm_tools import later, virtually

pytestmark = pytest.mark.promise("any-peer-may-die")

RATE = 4e5
LAYOUT = VectorLayout((60_000,), "float32")  # 240 kB: about a second


def vectors_of(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(LAYOUT.total, generator=generator) for _ in range(count)]


def plausible(result: torch.Tensor, vectors: list[torch.Tensor], dead: set[int]) -> bool:
    """Whether each element is the mean over all members, or over all but some of those that died."""
    alive = [v for i, v in enumerate(vectors) if i not in dead]
    gone = [vectors[i] for i in sorted(dead)]
    fits = torch.zeros(LAYOUT.total, dtype=torch.bool)
    for mask in range(1 << len(gone)):
        some = alive + [v for i, v in enumerate(gone) if mask >> i & 1]
        fits |= torch.isclose(result, torch.stack(some).mean(0), atol=1e-5)
    return bool(fits.all())


async def reduce_with(
    world: World, dead: set[int], events: list[tuple[float, str, int]]
) -> tuple[list[torch.Tensor], list[RoundOutcome | BaseException]]:
    """Let all reduce while things happen; returns what the survivors have."""
    await world.start()
    for party in world.parties:  # links are warm, as between two rounds
        for other in world.parties:
            if other is not party and other.network.address.dialable:
                await party.network.process.run(party.node.connection(other.peer_id))
    count = len(world.parties)
    for when_s, fault, index in events:
        later(when_s, lambda fault=fault, index=index: getattr(world.internet, fault)(world.parties[index].network))
    results, outcomes = await world.reduce(world.plan(LAYOUT), LAYOUT, list(vectors_of(count)), [1] * count)
    await world.close()
    kept = [i for i in range(count) if i not in dead]
    return [results[i] for i in kept], [outcomes[i] for i in kept]


@pytest.mark.parametrize("victim", [0, 2, 4])
@pytest.mark.parametrize("when_s", [0.01, 0.7])
def test_a_member_dies_at_any_time(victim: int, when_s: float) -> None:
    @virtually
    async def main() -> None:
        world = World(5, clients=1, seed=victim, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
        results, outcomes = await reduce_with(world, {victim}, [(when_s, "kill", victim)])
        assert all(isinstance(outcome, RoundOutcome) for outcome in outcomes)
        assert all(torch.equal(result, results[0]) for result in results)
        assert plausible(results[0], vectors_of(5), {victim})
        assert all(outcome.seconds < 7.0 for outcome in outcomes if isinstance(outcome, RoundOutcome))
        assert all(party.offences() == [] for party in world.parties)

    main()


ORDERS: dict[str, tuple[int, msgspec.Struct]] = {
    "freeze by one behind us in the order": (3, Freeze(ROUND, 1, (), ())),
    "freeze that buries us": (0, Freeze(ROUND, 1, (1,), ())),
    "freeze of an absurd term": (0, Freeze(ROUND, MAX_TERM, (), ())),
    "repair by one behind us in the order": (3, Repair(ROUND, 1, (0,), (), (), ())),
    "repair that buries us": (0, Repair(ROUND, 1, (1,), (), (), ())),
    "repair of an absurd term": (0, Repair(ROUND, MAX_TERM, (), (), (), ())),
}


@pytest.mark.parametrize("order", ORDERS)
def test_orders_that_nobody_may_give_are_refused_and_the_round_goes_on(order: str) -> None:
    @virtually
    async def main() -> None:
        world = World(4, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
        await world.start()
        giver, message = world.parties[ORDERS[order][0]], ORDERS[order][1]
        method = FREEZE if isinstance(message, Freeze) else REPAIR
        refusals: list[RemoteError] = []

        async def give() -> None:
            try:
                await giver.node.call(world.parties[1].peer_id, method, message, ChunkMap)
            except RemoteError as error:
                refusals.append(error)

        later(0.3, lambda: giver.network.process.run(give()))
        vectors = vectors_of(4)
        results, outcomes = await world.reduce(world.plan(LAYOUT), LAYOUT, list(vectors), [1] * 4)
        assert len(refusals) == 1
        assert world.parties[1].offences() == [(giver.peer_id, world.parties[1].offences()[0][1])]
        assert "not for it to repair" in world.parties[1].offences()[0][1]
        assert all(isinstance(outcome, RoundOutcome) for outcome in outcomes)
        assert all(torch.equal(result, results[0]) for result in results)
        await world.close()

    main()


def test_a_coordinator_that_revokes_everybody_ends_the_round_and_keeps_nobody_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original, reports = Repairer._report, 0

    async def report(repairer: Repairer, slow: tuple[int, ...] = ()) -> None:
        nonlocal reports
        reports += 1
        assert reports < 1000, "it asks again and again without a pause"
        await original(repairer, slow)

    monkeypatch.setattr(Repairer, "_report", report)

    @virtually
    async def main() -> None:
        world = World(5, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
        await world.start()
        liar, *others = world.parties

        async def lie() -> None:
            for other in others:
                with contextlib.suppress(RemoteError):
                    await liar.node.call(other.peer_id, FREEZE, Freeze(ROUND, 1, (), tuple(range(5))), ChunkMap)

        later(0.3, lambda: liar.network.process.run(lie()))
        async with asyncio.timeout(60.0):
            await world.reduce(world.plan(LAYOUT), LAYOUT, vectors_of(5), [1] * 5)
        await world.close()

    main()


@pytest.mark.parametrize("pretended", [1, 999])
def test_a_member_that_speaks_for_others_takes_nobody_s_work_away(pretended: int) -> None:
    @virtually
    async def main() -> None:
        world = World(5, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
        await world.start()
        liar, coordinator = world.parties[3], world.parties[0]

        async def lie() -> None:
            for by in (1, 2, 4, pretended):
                request = Lost(ROUND, (), (1, 2, 4), by)
                with contextlib.suppress(RemoteError):
                    await liar.node.call(coordinator.peer_id, LOST, request, Done)

        later(0.3, lambda: liar.network.process.run(lie()))
        results, outcomes = await world.reduce(world.plan(LAYOUT), LAYOUT, list(vectors_of(5)), [1] * 5)
        assert all(isinstance(outcome, RoundOutcome) for outcome in outcomes)
        assert all(torch.equal(result, results[0]) for result in results)
        assert not [event for party in world.parties for event in party.log if event.kind == "round.work_taken_over"]
        await world.close()

    main()


@pytest.mark.parametrize(("stalled", "predicted_s"), [(1, None), (4, 1e9)])
def test_a_member_that_stalls_in_mid_round_takes_nobody_else_with_it(
    stalled: int, predicted_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "STALL_S", 3.0)
    send_own = sender._send_own

    async def stall(round: Round, own: Encoder, index: int, *arguments: Any) -> None:
        if round.me == stalled and round.turns._parts[(0, 0)].sent >= 1:
            await asyncio.sleep(1e6)
        await send_own(round, own, index, *arguments)

    monkeypatch.setattr(sender, "_send_own", stall)

    @virtually
    async def main() -> None:
        world = World(5, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
        await world.start()
        layout = VectorLayout((200_000,), "float32")
        vectors = [torch.full((200_000,), float(2**i)) for i in range(5)]
        plan = msgspec.structs.replace(world.plan(layout), predicted_s=predicted_s)
        _, outcomes = await world.reduce(plan, layout, vectors, [1] * 5)
        kept = [outcome for i, outcome in enumerate(outcomes) if i != stalled]
        assert all(isinstance(outcome, RoundOutcome) for outcome in kept), kept
        dropped = {e.fields["peer"] for p in world.parties for e in p.log if e.kind == "round.sender_dropped"}
        assert dropped == {world.parties[stalled].peer_id}
        await world.close()

    main()


@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 10_000), clients=st.integers(0, 2))
def test_two_of_six_die_at_random_times(seed: int, clients: int) -> None:
    @virtually
    async def main() -> None:
        rng = random.Random(seed)
        dead = set(rng.sample(range(6), 2))
        world = World(6, clients=clients, seed=seed, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
        results, outcomes = await reduce_with(world, dead, [(rng.uniform(0.0, 4.0), "kill", i) for i in sorted(dead)])
        assert all(isinstance(outcome, RoundOutcome) for outcome in outcomes)
        assert all(torch.equal(result, results[0]) for result in results)
        assert plausible(results[0], vectors_of(6), dead)

    main()


def test_without_a_quorum_everybody_gives_up_and_nothing_hangs() -> None:
    @virtually
    async def main() -> None:
        world = World(5, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
        dead = {0, 1, 2}
        _, outcomes = await reduce_with(world, dead, [(0.2, "kill", i) for i in sorted(dead)])
        assert all(isinstance(outcome, RoundAbortedError) for outcome in outcomes)

    main()


def test_a_stalled_member_finds_itself_too_late() -> None:
    @virtually
    async def main() -> None:
        world = World(4, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
        later(15.0, lambda: world.internet.resume(world.parties[3].network))

        async def retire() -> None:
            await asyncio.sleep(12.0)
            for party in world.parties[:3]:
                party.all_reduce.retire()

        retiring = asyncio.ensure_future(retire())
        results, outcomes = await reduce_with(world, set(), [(0.3, "stall", 3)])
        await retiring
        assert all(isinstance(outcome, RoundOutcome) for outcome in outcomes[:3])
        assert all(torch.equal(result, results[0]) for result in results[:3])
        assert isinstance(outcomes[3], RoundAbortedError)

    main()


@pytest.mark.parametrize(("stalled", "when_s", "lasts_s"), [(0, 0.05, 1.4), (0, 0.45, 1.2), (2, 0.05, 1.35)])
def test_who_stalled_as_long_as_some_waited_takes_none_of_these_for_lost(
    stalled: int, when_s: float, lasts_s: float
) -> None:
    """Members ended their streams to it, or refused its part as too late: they live, and have what it lacks."""

    @virtually
    async def main() -> None:
        world = World(5, seed=stalled, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
        stall = [(when_s, "stall", stalled), (when_s + lasts_s, "resume", stalled)]
        results, outcomes = await reduce_with(world, set(), stall)
        del results[stalled], outcomes[stalled]  # it may be out, the others not
        assert all(isinstance(outcome, RoundOutcome) for outcome in outcomes)
        assert all(torch.equal(result, results[0]) for result in results)
        assert plausible(results[0], vectors_of(5), {stalled})

    main()


def test_a_member_that_gave_the_round_up_takes_no_part_in_its_repair() -> None:
    """Its contribution counts again elsewhere, in the same memory: what it sent now would be other numbers."""

    @virtually
    async def main() -> None:
        world = World(4, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
        await world.start()
        plan = world.plan(LAYOUT)
        repair = Repair(plan.round_id, 1, (), (), (), ())
        refusals: list[RemoteError] = []

        async def give() -> None:
            quitter = world.parties[3]
            quitter.all_reduce.give_up(plan, "overtaken")
            round, _ = quitter.all_reduce._rounds[plan.round_id]
            round.spawn(asyncio.sleep(0.0), frozenset())
            try:
                await world.parties[0].node.call(quitter.peer_id, REPAIR, repair, Done)
            except RemoteError as error:
                refusals.append(error)
            assert not round._tasks

        later(0.3, lambda: world.parties[0].network.process.run(give()))
        _, outcomes = await world.reduce(plan, LAYOUT, list(vectors_of(4)), [1] * 4)
        assert isinstance(outcomes[3], RoundAbortedError)
        assert [str(error).count("overtaken") for error in refusals] == [1]
        await world.close()

    main()


@given(numel=st.integers(1, 5000), count=st.integers(1, 6), target=st.integers(1024, 5000), have=st.integers(0))
def test_chunks_tile_the_vector_and_bitmaps_can_be_undone(numel: int, count: int, target: int, have: int) -> None:
    @virtually
    async def main() -> None:
        world = World(count)
        layout = VectorLayout((numel,), "int8")
        chunks, assignments = chunk_table(layout, world.plan(layout, chunk_bytes=target))
        assert [index for part in assignments for index in part.chunks] == list(range(len(chunks)))
        assert [chunk.start for chunk in chunks] == [0, *(chunk.stop for chunk in chunks[:-1])]
        assert chunks[-1].stop == numel
        bits = [bool(have >> i & 1) for i in range(len(chunks))]
        packed = sum(1 << i for i, bit in enumerate(bits) if bit).to_bytes((len(bits) + 7) // 8, "little")
        assert unpack_bitmap(packed, len(bits)) == bits
        assert unpack_bitmap(b"", 3) == [False] * 3

    main()


def test_a_coordinator_that_never_got_the_plan_is_passed_over() -> None:
    """The leader sent it the plan and died; the others are still enough, and all have the plan."""

    @virtually
    async def main() -> None:
        world = World(6, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
        await world.start()
        later(0.3, lambda: world.internet.kill(world.parties[0].network))
        vectors = vectors_of(6)
        results, outcomes = await world.reduce(world.plan(LAYOUT), LAYOUT, list(vectors), [1] * 6, who=(0, 2, 3, 4, 5))
        assert all(isinstance(outcome, RoundOutcome) for outcome in outcomes[1:]), outcomes
        assert all(torch.equal(result, results[1]) for result in results[1:])
        assert plausible(results[1], vectors, {0, 1})
        await world.close()

    main()


def test_a_leader_that_was_restarted_is_no_member_of_its_old_round() -> None:
    """It is back before a member that stood still reports it to the others, who are done and did not miss it."""

    @virtually
    async def main() -> None:
        world = World(5, clients=1, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
        leader = world.parties[0]

        def restart() -> None:
            world.internet.kill(leader.network)
            network = world.internet.host(leader.network.settings, private_key=leader.network.private_key)
            world.parties[0], world.book[leader.peer_id] = Party(network, world.book), network.address
            network.process.context.run(world.parties[0].node.start)
            for other in world.parties[1:4]:
                network.process.run(world.parties[0].node.connection(other.peer_id))

        later(2.2, restart)
        results, outcomes = await reduce_with(world, {0}, [(1.1, "stall", 4), (2.3, "resume", 4)])
        assert all(isinstance(outcome, RoundOutcome) for outcome in outcomes), outcomes
        assert all(torch.equal(result, results[0]) for result in results)
        assert [outcome.seconds < 2.2 for outcome in outcomes if isinstance(outcome, RoundOutcome)] == [True] * 3 + [
            False
        ]

    main()


def test_a_client_can_be_reached_by_whoever_mends_the_round() -> None:
    """The leader dies with a root; the next in order cannot dial the client, which never had to talk to it."""

    @virtually
    async def main() -> None:
        world = World(5, clients=1, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
        for party in world.parties:
            party.network.process.context.run(party.node.start)
        for index in (0, 2):
            later(0.3, lambda index=index: world.internet.kill(world.parties[index].network))
        vectors = vectors_of(5)
        plan = msgspec.structs.replace(world.plan(LAYOUT), parts=(Part(30_000, 2), Part(60_000, 3)))
        results, outcomes = await world.reduce(plan, LAYOUT, list(vectors), [1] * 5)
        assert [isinstance(outcomes[i], RoundOutcome) for i in (1, 3, 4)] == [True] * 3, outcomes
        assert all(torch.equal(results[i], results[1]) for i in (3, 4))
        assert plausible(results[1], vectors, {0, 2})
        await world.close()

    main()


@pytest.mark.parametrize("chunks", [(), (0, 0), (1 << 17,)])
def test_an_assignment_of_nothing_or_of_what_does_not_exist_is_not_taken_on(
    chunks: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """A task of a member failed where it attended to an assignment without chunks."""

    @virtually
    async def main() -> None:
        world = World(4, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
        await world.start()
        liar, *others = world.parties

        async def lie() -> None:
            assignments = tuple(Assignment((1, index), index, chunks) for index in range(4))
            for other in others:
                with contextlib.suppress(RemoteError):
                    await liar.node.call(other.peer_id, REPAIR, Repair(ROUND, 1, (), (), assignments, ()), Done)

        later(0.1, lambda: liar.network.process.run(lie()))
        results, outcomes = await world.reduce(world.plan(LAYOUT), LAYOUT, list(vectors_of(4)), [1] * 4)
        assert all(isinstance(outcome, RoundOutcome) for outcome in outcomes[1:]), outcomes
        assert {peer for outcome in outcomes[1:] for peer in outcome.lost} <= {liar.peer_id}  # type: ignore[union-attr]
        assert "task failed" not in caplog.text
        assert all(torch.equal(result, results[1]) for result in results[1:])
        await world.close()

    main()
