"""Rounds over sites and relays, and work that is taken away from members that live."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minga.averaging.allreduce.messages import PART, ChunkWeight, PartHello
from minga.averaging.allreduce.round import RoundOutcome
from minga.averaging.allreduce.service import RoundAbortedError
from minga.averaging.codecs.interface import CONTRIBUTION_LIMIT
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.solver.division import Division, PartShare
from minga.core.errors import RemoteError
from tests.worlds.reduce_world import World
from tests.worlds.swarm_tools import later, virtually

pytestmark = pytest.mark.promise("any-peer-may-die")

LAYOUT = VectorLayout((60_000,), "float32")
RATE = 4e5


def two_sites(first: list[int], second: list[int], *, alone: list[int] | None = None) -> Division:
    """Each pair of one member of either site has a part, which one of the two is the root of by turns."""
    pairs = list(itertools.product(first, second))
    parts = [PartShare(1 / len(pairs), pair[(i + i // len(second)) % 2], pair) for i, pair in enumerate(pairs)]
    # Members without a site may be roots, too.
    parts += [PartShare(1 / len(pairs), root, (first[0], second[0])) for root in alone or []]
    return Division(tuple(parts), (tuple(first), tuple(second)))


def vectors_of(count: int, layout: VectorLayout = LAYOUT) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    return [torch.randn(layout.total, generator=generator) for _ in range(count)]


def mean_of(vectors: list[torch.Tensor], weights: list[int]) -> torch.Tensor:
    weighted = [vector.double() * weight for vector, weight in zip(vectors, weights, strict=True)]
    return torch.stack(weighted).sum(0) / sum(weights)


async def connect_all(world: World) -> None:
    await world.start()
    for party in world.parties:
        for other in world.parties:
            if other is not party and other.network.address.dialable:
                await party.network.process.run(party.node.connection(other.peer_id))


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("contributor", [0, 1, 5, 6])
def test_the_only_contribution_of_a_round_comes_over_relays_to_the_bit(contributor: int, dies: bool) -> None:
    """No member has anything else to give. If its sender dies in the middle, the round comes to nothing for all."""

    @virtually
    async def main() -> None:
        world = World(7, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
        await connect_all(world)
        (vector,) = vectors_of(1)
        vectors = [vector if me == contributor else None for me in range(7)]
        plan = world.divide(LAYOUT, two_sites([0, 2, 4], [1, 3, 5], alone=[6]))
        if dies:
            later(0.2, lambda: world.internet.kill(world.parties[contributor].network))
        results, outcomes = await world.reduce(plan, LAYOUT, vectors, [int(me == contributor) for me in range(7)])
        for me in set(range(7)) - {contributor} if dies else range(7):
            assert not world.parties[me].offences()
            if dies:
                assert isinstance(outcomes[me], RoundAbortedError)
            else:
                assert isinstance(outcomes[me], RoundOutcome)
                assert torch.equal(results[me], vector)
        await world.close()

    main()


@pytest.mark.parametrize(("codec", "tolerance"), [("float32", 1e-5), ("float16", 5e-3), ("int8", 0.06)])
def test_all_get_the_same_bits_over_relays(codec: str, tolerance: float) -> None:
    @virtually
    async def main() -> None:
        layout = VectorLayout((9_000, 4_001), codec)
        world = World(7)
        await world.start()
        vectors, weights = vectors_of(7, layout), [3, 0, 5, 6, 7, 1, 2]
        plan = world.divide(layout, two_sites([0, 2, 4], [1, 3, 5], alone=[6]))
        results, outcomes = await world.reduce(plan, layout, list(vectors), weights)
        assert all(isinstance(outcome, RoundOutcome) and not outcome.lost for outcome in outcomes)
        assert all(torch.equal(result, results[0]) for result in results)
        assert torch.allclose(results[0].double(), mean_of(vectors, weights), atol=tolerance)
        roots = {part.root for part in plan.parts}
        for me, (party, outcome) in enumerate(zip(world.parties, outcomes, strict=True)):
            # A root hears of the other site by the word of its relays, a relay of its own site alone.
            seen = range(7) if me in roots else plan.sites[1]
            assert isinstance(outcome, RoundOutcome)
            assert outcome.heard == {world.parties[i].peer_id: weights[i] for i in seen if world.parties[i] != party}
        assert all(party.offences() == [] for party in world.parties)
        await world.close()

    main()


@pytest.mark.parametrize("codec", ["float32", "int8"])
def test_a_relay_sends_nothing_that_the_root_would_blame_it_for(codec: str) -> None:
    @virtually
    async def main() -> None:
        layout = VectorLayout((9_000,), codec)
        world = World(4)
        await world.start()
        vectors, plan = vectors_of(4, layout), world.divide(layout, two_sites([0, 1], [2, 3]))
        relay = next(relay for relay in plan.parts[0].relays if relay != plan.parts[0].root)
        vectors[relay][: plan.parts[0].stop] = 4 * CONTRIBUTION_LIMIT  # in a mean of two
        _, outcomes = await world.reduce(plan, layout, list(vectors), [1] * 4)
        assert "too large" in str(outcomes[relay])
        assert [party.offences() for party in world.parties] == [[]] * 4
        await world.close()

    main()


def test_between_the_sites_each_part_goes_once_in_each_direction() -> None:
    @virtually
    async def main() -> None:
        sent = {}
        for name, division in (
            ("flat", Division(tuple(PartShare(1 / 8, i) for i in range(8)))),
            ("sites", two_sites([0, 1, 2, 3], [4, 5, 6, 7])),
        ):
            world = World(8)
            await connect_all(world)
            plan = world.divide(LAYOUT, division)
            results, _ = await world.reduce(plan, LAYOUT, list(vectors_of(8)), [1] * 8)
            assert torch.allclose(results[0].double(), mean_of(vectors_of(8), [1] * 8), atol=1e-5)
            links = [world.parties[i].node.facts(world.parties[j].peer_id) for i in range(4) for j in range(4, 8)]
            sent[name] = sum(link.bytes_sent + link.bytes_received for link in links if link is not None)
            await world.close()
        assert sent["sites"] < 0.3 * sent["flat"]

    main()


@settings(deadline=None, max_examples=4)
@given(seed=st.integers(0, 10_000))
def test_two_of_seven_die_at_random_times(seed: int) -> None:
    @virtually
    async def main() -> None:
        rng = random.Random(seed)
        world = World(7, seed=seed, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
        await connect_all(world)
        dead = set(rng.sample(range(7), 2))
        for index in sorted(dead):
            later(rng.uniform(0.0, 1.2), lambda index=index: world.internet.kill(world.parties[index].network))
        plan = world.divide(LAYOUT, two_sites([0, 1, 2], [3, 4, 5], alone=[6]))
        results, outcomes = await world.reduce(plan, LAYOUT, list(vectors_of(7)), [1] * 7)
        await world.close()
        kept = [i for i in range(7) if i not in dead]
        assert all(isinstance(outcomes[i], RoundOutcome) for i in kept), outcomes
        assert all(torch.equal(results[i], results[kept[0]]) for i in kept)

    main()


@pytest.mark.parametrize("pair", [(4, 1), (1, 2), (0, 1), (0, 3)])
def test_a_link_that_breaks_between_two_is_gone_around(pair: tuple[int, int]) -> None:
    @virtually
    async def main() -> None:
        world = World(6, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
        await connect_all(world)
        one, other = (world.parties[i].network for i in pair)
        later(0.3, lambda: world.internet.cut(one, other))
        vectors = vectors_of(6)
        plan = world.divide(LAYOUT, two_sites([0, 1, 2], [3, 4, 5]))
        results, outcomes = await world.reduce(plan, LAYOUT, list(vectors), [1] * 6)
        await world.close()
        done = [i for i, outcome in enumerate(outcomes) if isinstance(outcome, RoundOutcome)]
        # If the coordinator is one of the two, each takes the other for dead, and one of them is right for the rest.
        assert done == list(range(6)) or (0 in pair and len(done) == 5), outcomes
        assert all(torch.equal(results[i], results[done[0]]) for i in done)
        assert max(outcomes[i].seconds for i in done) < 15.0

    main()


def test_who_takes_itself_for_a_relay_is_named() -> None:
    @virtually
    async def main() -> None:
        world = World(5)
        await world.start()
        vectors, plan = vectors_of(5), world.divide(LAYOUT, two_sites([0, 1], [2, 3]))
        liar = world.parties[4]

        async def lie(to: int, weight: int | None) -> None:
            try:
                async with liar.node.open(world.parties[to].peer_id, PART) as stream:
                    await stream.send(PartHello(plan.round_id, (0, 0), weight))
                    await stream.send(ChunkWeight(1 << 40))
                    await stream.receive_bulk_into(memoryview(bytearray(8)))
            except RemoteError:
                pass

        root, relay = plan.parts[0].root, next(i for i in plan.parts[0].relays if i != plan.parts[0].root)
        lies = [liar.network.process.run(lie(to, weight)) for to, weight in ((root, None), (relay, 1))]
        results, outcomes = await world.reduce(plan, LAYOUT, list(vectors), [1] * 5, who=[0, 1, 2, 3])
        await asyncio.gather(*lies)
        await world.close()
        assert all(isinstance(outcome, RoundOutcome) for outcome in outcomes)
        assert all(torch.equal(result, results[0]) for result in results)
        blamed = {peer for party in world.parties[:4] for peer, _ in party.offences()}
        assert blamed == {liar.peer_id}

    main()


def test_the_rest_of_a_slow_aggregators_part_moves_to_others() -> None:
    @virtually
    async def main() -> None:
        world = World(6, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
        await connect_all(world)
        vectors = vectors_of(6)
        slow = world.parties[4].network
        later(0.3, lambda: world.internet.set_rate(slow, up_bytes_per_s=RATE / 20, down_bytes_per_s=RATE / 20))
        plan = world.plan(LAYOUT)
        results, outcomes = await world.reduce(plan, LAYOUT, list(vectors), [1] * 6)
        kept = [i for i in range(6) if i != 4]
        assert all(isinstance(outcomes[i], RoundOutcome) for i in kept), outcomes
        assert all(torch.equal(results[i], results[kept[0]]) for i in kept)
        taken = [event for party in world.parties for event in party.log if event.kind == "round.work_taken_over"]
        assert {event.fields["peer"] for event in taken} == {world.parties[4].peer_id}
        assert max(outcomes[i].seconds for i in kept) < 10.0  # its own part alone takes 20
        await world.close()

    main()
