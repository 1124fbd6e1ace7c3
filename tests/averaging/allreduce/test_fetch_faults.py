"""Members that fetch from each other after a loss, when holders, relays or links fail as well, or lie."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest
import torch

from minga.averaging.allreduce import sender, service
from minga.averaging.allreduce.messages import LOST, ChunkMap, Done, FetchChunks, Lost, Repair
from minga.averaging.allreduce.repair import COORDINATORS, Repairer
from minga.averaging.allreduce.round import Round, RoundOutcome
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.solver.division import Division, PartShare
from minga.network.rpc.stream import MessageStream
from tests.averaging.allreduce.test_two_level import connect_all
from tests.worlds.reduce_world import World
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import later, virtually

SITES = tuple((i, 7 - i, 8 + i, 15 - i) for i in range(4))
RELAYS = ((0, 6, 5, 4), (7, 1, 10, 11), (8, 9, 2, 12), (15, 14, 13, 3))
DIVISION = Division(tuple(PartShare(0.25, root, relays) for root, relays in enumerate(RELAYS)), SITES)
COUNT, ROOT, VICTIM, HOLDER, RELAY = 16, 1, 8, 2, 7
"""When the relay `VICTIM` dies, `HOLDER` has a chunk that others lack, and `RELAY` of the leader's site asks for it."""


async def mended(
    prepare: Callable[[World], None] = lambda _: None, lost: int = VICTIM, lost_s: float = 0.5
) -> list[RoundOutcome]:
    """How a round of four sites went for those who live, when one is lost; all have the same result."""
    layout = VectorLayout((160_000,), "float32")
    world = World(COUNT, up_bytes_per_s=2e6, down_bytes_per_s=1e7)
    await world.start()
    vectors = [torch.full((layout.total,), float(2 ** (index % 20))) for index in range(COUNT)]
    plan = world.divide(layout, DIVISION)
    prepare(world)
    later(lost_s, lambda: world.internet.kill(world.parties[lost].network))
    results, outcomes = await world.reduce(plan, layout, vectors, [1] * COUNT)
    await world.close()
    kept = [index for index in range(COUNT) if index != lost]
    whole = [outcome for index in kept if isinstance(outcome := outcomes[index], RoundOutcome)]
    assert len(whole) == len(kept), outcomes
    assert all(torch.equal(results[index], results[kept[0]]) for index in kept)
    assert all(party.offences() == [] for party in world.parties)
    return whole


@pytest.mark.parametrize("lost_s", [soaked(0.7), 0.6])
def test_what_some_have_from_a_lost_root_is_not_fetched_from_one_line(
    lost_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All asked the first that had it, from which hardly anything else came while it answered: of 400 none got done."""
    served = Counter[int]()

    async def count(round: Round, stream: MessageStream, request: FetchChunks) -> None:
        served[round.me] += len(request.chunks)
        await sender.serve_fetch(round, stream, request)

    monkeypatch.setattr(service, "serve_fetch", count)

    @virtually
    async def main() -> None:
        whole = await mended(lost=ROOT, lost_s=lost_s)
        assert 0 < max(served.values()) <= 2 * len(whole[0].plan.sites)

    main()


def test_a_broken_link_to_the_holder_costs_seconds() -> None:
    """The coordinator waited for the relay of its site, which turned to the coordinator: for 300 s."""

    @virtually
    async def main() -> None:
        whole = await mended(lambda w: w.internet.cut(w.parties[RELAY].network, w.parties[HOLDER].network))
        assert 6.0 < max(outcome.seconds for outcome in whole) < 12.0
        assert all(len(outcome.lost) == 1 for outcome in whole if outcome.seconds < 5.0)

    main()


def test_those_to_whom_others_turn_ask_only_members_that_have_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator, and whom members take for it that cannot reach that one: they must not wait for these.

    This coordinator names chunks again and again, which makes nobody offend and costs nothing.
    """
    asked, original = Counter[tuple[int, bool]](), Repairer._decide

    def decide(coordinator: Repairer, term: int, holdings: dict[int, ChunkMap]) -> Repair:
        repair = original(coordinator, term, holdings)
        return msgspec.structs.replace(repair, holders=repair.holders * 8)

    async def serve(round: Round, stream: MessageStream, request: FetchChunks) -> None:
        is_there = all(round.have[index] for index in request.chunks)
        asked[round.members.index(stream.peer), is_there] += 1
        await sender.serve_fetch(round, stream, request)

    monkeypatch.setattr(service, "serve_fetch", serve)
    monkeypatch.setattr(Repairer, "_decide", decide)

    @virtually
    async def main() -> None:
        assert max(outcome.seconds for outcome in await mended()) < 6.0
        first = {key for key in asked if key[0] < COORDINATORS}
        assert {is_there for _, is_there in first} == {True}
        assert any(not is_there for _, is_there in asked), "nobody waited for a relay"

    main()


@pytest.mark.parametrize(("silent", "most_s"), [(HOLDER, 45.0), soaked(RELAY, 45.0)])
def test_who_says_nothing_when_it_is_asked_costs_half_a_minute_and_nobody_else(
    silent: int, most_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pulses go on, so it is alive. Members waited 300 s for it, and took honest ones that wait for it for lost."""

    async def serve(round: Round, stream: MessageStream, request: FetchChunks) -> None:
        if round.me == silent:
            await asyncio.Event().wait()
        await sender.serve_fetch(round, stream, request)

    monkeypatch.setattr(service, "serve_fetch", serve)

    @virtually
    async def main() -> None:
        whole = await mended()
        assert 8.0 < max(outcome.seconds for outcome in whole) < most_s
        allowed = {whole[0].plan.ids[index] for index in (VICTIM, silent)}
        assert all(outcome.lost.keys() <= allowed for outcome in whole)

    main()


@pytest.mark.parametrize("revoked_s", [3.0, 4.0])
def test_who_stands_in_for_a_slow_holder_waits_for_nobody_else(
    revoked_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A root is slow, so others take over; the one that has its last chunk dies, and only the root has it then. The
    coordinator, which asks it for all, still waited for the relay of its site, and that one for the coordinator.
    """
    layout, world_of = VectorLayout((60_000,), "float32"), list[World]()
    original = Repairer._decide

    def decide(coordinator: Repairer, term: int, holdings: dict[int, ChunkMap]) -> Repair:
        if world_of:  # in the first repair
            world = world_of.pop()
            later(0.3, lambda: world.internet.kill(world.parties[5].network))
        return original(coordinator, term, holdings)

    monkeypatch.setattr(Repairer, "_decide", decide)

    @virtually
    async def main() -> None:
        world = World(6, up_bytes_per_s=4e5, down_bytes_per_s=4e6)
        world_of.append(world)
        await connect_all(world)
        parties = world.parties
        for index in (0, 1, 2, 4):
            world.internet.set_latency(parties[3].network, parties[index].network, 0.25)
        world.internet.set_rate(parties[5].network, up_bytes_per_s=6e4, down_bytes_per_s=4e6)
        plan = world.divide(layout, Division((PartShare(1.0, 3, (1, 3)),), ((0, 1, 2), (3, 4, 5))))
        vectors = [torch.full((layout.total,), float(2**index)) for index in range(6)]

        async def ask_for_help() -> None:
            await parties[3].node.call(plan.ids[0], LOST, Lost(plan.round_id, (), (3,)), Done)

        later(revoked_s, lambda: parties[3].network.process.run(ask_for_help()))
        results, outcomes = await world.reduce(plan, layout, vectors, [1] * 6)
        await world.close()
        whole = [outcome for outcome in outcomes[:5] if isinstance(outcome, RoundOutcome)]
        assert len(whole) == 5, outcomes
        assert max(outcome.seconds for outcome in whole) < 12.0
        assert all(torch.equal(results[index], results[0]) for index in range(5))

    main()
