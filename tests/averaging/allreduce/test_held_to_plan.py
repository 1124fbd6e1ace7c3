"""Aggregators take contributions from those members only that the plan chose, and none that weighs more than it may."""

from __future__ import annotations

import msgspec
import pytest
import torch

from minga.averaging.allreduce.round import RoundOutcome
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.messages import PeerScore
from minga.averaging.solver.division import Division, PartShare
from tests.worlds.reduce_world import World
from tests.worlds.swarm_tools import virtually

LAYOUT = VectorLayout([9_000], "float32")


def vectors_of(count: int) -> list[torch.Tensor | None]:
    chance = torch.Generator().manual_seed(3)
    return [torch.randn(LAYOUT.total, generator=chance) for _ in range(count)]


@pytest.mark.parametrize("most", [1, None], ids=["elastic", "samples"])
def test_a_weight_above_what_all_count_is_not_taken(most: int | None) -> None:
    """The last of four says that it counts a thousand times; no mean that an honest root makes has anything of it."""

    @virtually
    async def main() -> None:
        world = World(4, clients=1)
        await world.start()
        vectors, plan, honest = vectors_of(4), world.plan(LAYOUT), [0, 1, 2]
        results, outcomes = await world.reduce(plan, LAYOUT, vectors, [1, 1, 1, 1000], most_weight=most)
        await world.close()
        assert all(isinstance(outcomes[i], RoundOutcome) for i in honest), outcomes
        assert all(torch.equal(results[i], results[0]) for i in honest)
        blamed = {peer for i in honest for peer, _ in world.parties[i].offences()}
        chosen = honest if most else range(4)
        weights = [1, 1, 1, 1000]
        wanted = sum(weights[i] * vectors[i].double() for i in chosen) / sum(weights[i] for i in chosen)  # type: ignore[union-attr]
        assert torch.allclose(results[0].double(), wanted, atol=1e-5)
        assert blamed == ({world.parties[3].peer_id} if most else set())

    main()


def test_who_was_not_chosen_adds_nothing_to_a_round_of_the_best() -> None:
    """The plan chose the first. The last one gives something all the same."""

    @virtually
    async def main() -> None:
        world = World(4, clients=1)
        await world.start()
        vectors = vectors_of(4)
        vectors[1] = vectors[2] = None
        scores = (PeerScore(0.5), PeerScore(1.0), None, PeerScore(2.0))
        plan = msgspec.structs.replace(world.plan(LAYOUT), contributors=(0,), scores=scores)
        results, outcomes = await world.reduce(plan, LAYOUT, vectors, [1, 0, 0, 1], most_weight=1)
        await world.close()
        assert all(isinstance(outcomes[i], RoundOutcome) for i in range(3)), outcomes
        assert all(torch.equal(results[i], vectors[0]) for i in range(3))  # type: ignore[arg-type]
        assert {peer for i in range(3) for peer, _ in world.parties[i].offences()} == {world.parties[3].peer_id}

    main()


def test_a_relay_is_held_to_what_its_site_may_weigh() -> None:
    """Members 2 and 3 are a site behind a relay, one of which counts too much; what the relay says is checked again."""

    @virtually
    async def main() -> None:
        world = World(5)
        await world.start()
        vectors = vectors_of(5)
        plan = world.divide(LAYOUT, Division((PartShare(1.0, 0, (2,)),), ((2, 3),)))
        weights = [1, 1, 1, 700, 1]
        results, outcomes = await world.reduce(plan, LAYOUT, vectors, weights, most_weight=1)
        await world.close()
        honest = [0, 1, 2, 4]
        assert all(isinstance(outcomes[i], RoundOutcome) for i in honest), outcomes
        wanted = sum(vectors[i].double() for i in honest) / 4  # type: ignore[union-attr]
        assert all(torch.allclose(results[i].double(), wanted, atol=1e-5) for i in honest)
        assert {peer for i in honest for peer, _ in world.parties[i].offences()} == {world.parties[3].peer_id}

    main()
