"""Rounds in which members hear of the same death, and of what follows from it, in different orders."""

from __future__ import annotations

import random

import pytest
import torch

from minga.averaging.allreduce.round import RoundOutcome
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.solver.division import Division, PartShare
from tests.worlds.reduce_world import World
from tests.worlds.swarm_tools import later, virtually

LAYOUT = VectorLayout((60_000,), "float32")
RATE = 4e5
SITES = (0, 1, 2), (3, 4, 5)


def vectors() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(6)
    return [torch.randn(LAYOUT.total, generator=generator) for _ in range(6)]


# Each of these once lost members that lived: they had heard first that others take over, and had turned away.
@pytest.mark.parametrize("seed", [19, 38, 41, 42])
def test_who_hears_first_that_others_take_over_is_not_missing_from_the_mean(seed: int) -> None:
    @virtually
    async def main() -> None:
        rng = random.Random(seed)
        victim = rng.randrange(6)
        world = World(6, seed=seed, up_bytes_per_s=RATE, down_bytes_per_s=RATE, latency_s=0.001)
        hosts = [party.network for party in world.parties]
        for one in range(6):
            for other in range(one):
                world.internet.set_latency(hosts[one], hosts[other], rng.uniform(0.001, 0.03))
        await world.start()
        for party in world.parties:
            for other_party in world.parties:
                if other_party is not party:
                    await party.network.process.run(party.node.connection(other_party.peer_id))
        given = vectors()
        pairs = [(one, other) for one in SITES[0] for other in SITES[1]]
        parts = [PartShare(1 / 9, pair[(i + i // 3) % 2], pair) for i, pair in enumerate(pairs)]
        later(0.02, lambda: world.internet.kill(hosts[victim]))
        plan = world.divide(LAYOUT, Division(tuple(parts), SITES))
        results, outcomes = await world.reduce(plan, LAYOUT, list(given), [1] * 6)
        await world.close()
        kept = [member for member in range(6) if member != victim]
        assert all(isinstance(outcomes[member], RoundOutcome) for member in kept), outcomes
        assert all(torch.equal(results[member], results[kept[0]]) for member in kept)
        fits = torch.isclose(results[kept[0]], torch.stack(given).mean(0), atol=1e-5)
        fits |= torch.isclose(results[kept[0]], torch.stack([given[member] for member in kept]).mean(0), atol=1e-5)
        assert fits.all(), f"{int((~fits).sum())} elements lack members that live"

    main()
