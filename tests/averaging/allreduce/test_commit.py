"""Rounds are committed by those who have a vote, and a later round can adopt what an earlier one left in doubt."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence

import msgspec
import pytest
import torch

from minga.averaging.allreduce.messages import HOLD, Committed, Hold
from minga.averaging.allreduce.round import RoundOutcome
from minga.averaging.allreduce.service import RoundAbortedError
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.residual import ContributionFate
from minga.averaging.messages import Plan
from minga.core.errors import RemoteError
from minga.network.rpc.stream import MessageStream
from tests.worlds.reduce_world import ROUND, World
from tests.worlds.swarm_tools import later, virtually

pytestmark = pytest.mark.promise("no-silent-fork")

LAYOUT = VectorLayout((40_000,), "float32")
RATE = 1e6


def vectors_of(count: int) -> list[torch.Tensor]:
    return [torch.randn(LAYOUT.total, generator=torch.Generator().manual_seed(i)) for i in range(count)]


def decided_by(plan: Plan, voters: Sequence[int], size: int, tie_breaker: int | None = None) -> Plan:
    return msgspec.structs.replace(plan, voters=tuple(voters), electorate=size, tie_breaker=tie_breaker)


async def reduce(
    world: World, plan: Plan, results: Sequence[torch.Tensor], who: Sequence[int], idle: int | None = None
) -> list[RoundOutcome | BaseException]:
    vectors = vectors_of(len(world.parties))
    tasks = [
        world.parties[i].network.process.run(
            world.parties[i].all_reduce.reduce(
                plan, LAYOUT, None if i == idle else vectors[i], 0 if i == idle else 1, results[i]
            )
        )
        for i in who
    ]
    return await asyncio.gather(*tasks, return_exceptions=True)


@virtually
async def test_members_without_a_vote_do_not_commit_a_round() -> None:
    """Two newcomers are cut off with one of three voters: most of the members, but no quorum."""
    world = World(5, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
    await world.start()
    plan = decided_by(world.plan(LAYOUT), (0, 1, 2), 3)
    for one in (0, 3, 4):
        for other in (1, 2):
            later(
                0.05, lambda one=one, other=other: world.internet.cut(*(world.parties[i].network for i in (one, other)))
            )
    results, outcomes = await world.reduce(plan, LAYOUT, list(vectors_of(5)), [1] * 5)
    assert all(isinstance(outcomes[i], RoundAbortedError) for i in (0, 3, 4)), outcomes
    assert all(isinstance(outcomes[i], RoundOutcome) for i in (1, 2)), outcomes
    assert torch.equal(results[1], results[2])
    await world.close()


@pytest.mark.parametrize("tie_breaker", [0, 3])
def test_of_two_halves_the_one_with_the_tie_breaker_commits(tie_breaker: int) -> None:
    @virtually
    async def main() -> None:
        world = World(4, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
        await world.start()
        plan = decided_by(world.plan(LAYOUT), range(4), 4, tie_breaker)
        for one in (0, 1):
            for other in (2, 3):
                later(0.05, lambda a=one, b=other: world.internet.cut(*(world.parties[i].network for i in (a, b))))
        _, outcomes = await world.reduce(plan, LAYOUT, list(vectors_of(4)), [1] * 4)
        done = {i for i, outcome in enumerate(outcomes) if isinstance(outcome, RoundOutcome)}
        assert done == ({0, 1} if tie_breaker == 0 else {2, 3}), outcomes
        await world.close()

    main()


@pytest.mark.parametrize("holders", [(1,), (0, 2)])
def test_a_round_that_adopts_a_result_brings_it_to_all(holders: tuple[int, ...]) -> None:
    @virtually
    async def main() -> None:
        world = World(5, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
        await world.start()
        first = world.plan(LAYOUT)
        results = [torch.full((LAYOUT.total,), torch.nan) for _ in range(5)]
        await reduce(world, first, results, range(5), idle=4)
        expected = results[0].clone()
        for i in range(5):
            if i not in holders:
                results[i].fill_(torch.nan)
        plan = msgspec.structs.replace(
            decided_by(world.plan(LAYOUT, round_id="f" * 32), range(5), 5),
            adopts=first.round_id,
            holders=holders,
            view=tuple(party.peer_id for party in world.parties),
            ballot=2,
        )
        outcomes = await reduce(world, plan, results, range(5), idle=0)
        assert all(isinstance(outcome, RoundOutcome) for outcome in outcomes), outcomes
        assert all(torch.equal(result, expected) for result in results)
        assert plan.result_id == first.round_id
        # The last one gave nothing to the first attempt: what it gives to the second is not in the result. The first
        # one gives nothing now, and what it gave then is.
        told = [(each.fate, each.earlier) for each in outcomes if isinstance(each, RoundOutcome)]
        assert told == [(ContributionFate.COUNTED, 1)] * 4 + [(ContributionFate.UNCOUNTED, 1)]
        assert plan.succession == tuple(party.peer_id for party in world.parties)
        await world.close()

    main()


@virtually
async def test_a_round_with_lost_holders_is_given_up_and_nothing_is_reduced_anew() -> None:
    world = World(4, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
    await world.start()
    plan = msgspec.structs.replace(
        decided_by(world.plan(LAYOUT), range(4), 4, 0),
        adopts="e" * 32,
        holders=(3,),
        view=tuple(party.peer_id for party in world.parties),
    )
    world.internet.kill(world.parties[3].network)
    results = [torch.full((LAYOUT.total,), torch.nan) for _ in range(4)]
    outcomes = await reduce(world, plan, results, range(3))
    assert all(isinstance(outcome, RoundAbortedError) and outcome.held_term is None for outcome in outcomes), outcomes
    await world.close()


EVERYONE = tuple(range(4))
LIES: dict[str, Callable[[], list[Hold]]] = {
    "other terms": lambda: [Hold(ROUND, term, EVERYONE) for term in (1, 64, 1000)],
    "random": lambda: [
        Hold(ROUND, term, tuple(random.Random(term).choices(EVERYONE, k=1000))) for term in range(1, 1001)
    ],
    "again and again": lambda: [Hold(ROUND, 0, (3,))] * 3000,
    "nobody": lambda: [Hold(ROUND, 0, (3, 999))],
}


@pytest.mark.parametrize("kind", LIES)
def test_what_a_member_cannot_hold_is_its_offence_and_stops_no_round(kind: str) -> None:
    """A term that no repair had was taken for a result that all others have: one message ended the round for all."""

    @virtually
    async def main() -> None:
        world = World(4, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
        await world.start()
        liar = world.parties[3]

        async def lie() -> None:
            for victim in world.parties[:3]:
                with contextlib.suppress(RemoteError):
                    async with liar.node.open(victim.peer_id, HOLD) as stream:
                        for message in LIES[kind]():
                            await stream.send(message)
                        await stream.receive(Committed)

        later(0.05, lambda: liar.network.process.run(lie()))
        results, outcomes = await world.reduce(world.plan(LAYOUT), LAYOUT, list(vectors_of(4)), [1] * 4)
        assert all(isinstance(outcome, RoundOutcome) for outcome in outcomes), outcomes
        assert all(torch.equal(result, results[0]) for result in results)
        assert {peer for party in world.parties for peer, _ in party.offences()} == {liar.peer_id}
        await world.close()

    main()


@pytest.mark.parametrize("silent", [(0,), (0, 1)])
def test_a_coordinator_that_lives_and_never_answers_stops_no_round(silent: tuple[int, ...]) -> None:
    @virtually
    async def main() -> None:
        world = World(5, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
        await world.start()

        async def listen(_peer: str, stream: MessageStream) -> None:
            while True:
                await stream.receive(Hold)

        for member in silent:
            world.parties[member].node.serve(HOLD, listen)
        async with asyncio.timeout(120.0):
            results, outcomes = await world.reduce(world.plan(LAYOUT), LAYOUT, list(vectors_of(5)), [1] * 5)
        assert all(isinstance(outcome, RoundOutcome) for outcome in outcomes), outcomes
        assert all(torch.equal(result, results[0]) for result in results)
        assert all(not outcome.lost for outcome in outcomes if isinstance(outcome, RoundOutcome)), "nobody is accused"
        await world.close()

    main()


@pytest.mark.parametrize("term", [0, 1, 1000])
def test_a_wrong_answer_of_the_coordinator_ends_no_member_s_round_without_end(term: int) -> None:
    @virtually
    async def main() -> None:
        world = World(4, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
        await world.start()

        async def answer(_peer: str, stream: MessageStream) -> None:
            await stream.receive(Hold)
            await stream.send(Committed(term))

        world.parties[0].node.serve(HOLD, answer)
        async with asyncio.timeout(120.0):
            _, outcomes = await world.reduce(world.plan(LAYOUT), LAYOUT, list(vectors_of(4)), [1] * 4)
        for outcome in outcomes[1:]:
            assert isinstance(outcome, RoundAbortedError if term else RoundOutcome)
        await world.close()

    main()


@pytest.mark.parametrize("is_past", [False, True])
def test_what_crosses_with_the_answer_is_no_offence(is_past: bool) -> None:
    """A member that hears of one more holder says so; the answer may be on its way to it by then."""

    @virtually
    async def main() -> None:
        world = World(4, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
        await world.start()
        coordinator, member = world.parties[0], world.parties[3]
        reducing = asyncio.ensure_future(world.reduce(world.plan(LAYOUT), LAYOUT, list(vectors_of(4)), [1] * 4))

        async def say_more() -> None:
            if is_past:
                await reducing
                coordinator.all_reduce.retire()
            async with member.node.open(coordinator.peer_id, HOLD) as stream:
                await stream.send(Hold(ROUND, 0, (3,)))
                await asyncio.sleep(5.0)
                await stream.send(Hold(ROUND, 0, (2, 3)))
                await asyncio.sleep(1.0)

        await member.network.process.run(say_more())
        _, outcomes = await reducing
        assert all(isinstance(outcome, RoundOutcome) for outcome in outcomes), outcomes
        assert coordinator.offences() == []
        await world.close()

    main()
