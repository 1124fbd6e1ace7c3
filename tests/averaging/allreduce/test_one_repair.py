"""One death takes one repair, and takes work from nobody who lives, whoever dies and however it is noticed."""

from __future__ import annotations

import random

import pytest
import torch

from minga.averaging.allreduce.round import RoundOutcome
from tests.averaging.allreduce.test_two_level import LAYOUT, RATE, connect_all, two_sites, vectors_of
from tests.worlds.reduce_world import World
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import later, virtually

pytestmark = pytest.mark.promise("any-peer-may-die")

SILENCE_S, QUICK_S = 1.75, 0.5
"""Until a peer counts as gone: by its silence, and by the end of its process."""
REPAIR_S = 1.3
"""A repair over these links and sites, with the half second in which the accused may answer the coordinator."""


def assert_mean_of_those_who_live(result: torch.Tensor, kept: list[int]) -> None:
    vectors = vectors_of(6)
    fits = torch.isclose(result, torch.stack(vectors).mean(0), atol=1e-5)
    fits |= torch.isclose(result, torch.stack([vectors[i] for i in kept]).mean(0), atol=1e-5)
    assert fits.all(), "every element is the mean over all, or over all but the one that died"


@pytest.mark.parametrize("seed", [0, *(soaked(seed) for seed in range(1, 20))])
@pytest.mark.parametrize(
    ("when_s", "is_noticed"),
    [(0.3, False), (0.3, True), *(soaked(when_s, told) for when_s in (0.02, 0.6) for told in (False, True))],
)
@pytest.mark.parametrize("victim", range(6))
def test_the_death_of_any_member_is_mended_at_once(victim: int, when_s: float, is_noticed: bool, seed: int) -> None:
    @virtually
    async def main() -> None:
        world = World(6, seed=seed, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
        await connect_all(world)
        later(when_s, lambda: world.internet.kill(world.parties[victim].network, is_noticed=is_noticed))
        plan = world.divide(LAYOUT, two_sites([0, 1, 2], [3, 4, 5]))
        results, outcomes = await world.reduce(plan, LAYOUT, list(vectors_of(6)), [1] * 6)
        await world.close()
        kept = [i for i in range(6) if i != victim]
        whole = [outcome for i, outcome in enumerate(outcomes) if i in kept and isinstance(outcome, RoundOutcome)]
        assert len(whole) == len(kept), outcomes
        assert all(torch.equal(results[i], results[kept[0]]) for i in kept)
        assert_mean_of_those_who_live(results[kept[0]], kept)
        assert all(world.parties[i].offences() == [] for i in kept)
        kinds = [event.kind for i in kept for event in world.parties[i].log]
        assert kinds.count("round.repaired") <= 1
        assert "round.work_taken_over" not in kinds
        usual_s = 0.8
        noticed_s = QUICK_S if is_noticed else SILENCE_S
        assert max(outcome.seconds for outcome in whole) < max(usual_s, when_s + noticed_s) + REPAIR_S

    main()


@pytest.mark.parametrize("is_noticed", [False, True])
def test_a_sender_that_dies_is_waited_for_no_longer_than_its_death_can_be_doubted(is_noticed: bool) -> None:
    """Whose connection is gone has heard no reasons to leave that this member has not: it once waited 2 s for these."""

    @virtually
    async def main() -> None:
        world = World(4, clients=1, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
        await connect_all(world)
        later(0.3, lambda: world.internet.kill(world.parties[3].network, is_noticed=is_noticed))
        results, outcomes = await world.reduce(world.plan(LAYOUT), LAYOUT, list(vectors_of(4)), [1] * 4)
        await world.close()
        whole = [outcome for outcome in outcomes[:3] if isinstance(outcome, RoundOutcome)]
        assert len(whole) == 3, outcomes
        assert all(torch.equal(results[i], results[0]) for i in range(3))
        assert max(outcome.seconds for outcome in whole) < 0.3 + (QUICK_S if is_noticed else SILENCE_S) + REPAIR_S
        assert "round.repaired" not in [event.kind for party in world.parties[:3] for event in party.log]

    main()


@pytest.mark.parametrize("seed", [19, 38, soaked(41), soaked(42)])
def test_who_hears_first_that_others_take_over_is_not_missing_from_the_mean(seed: int) -> None:
    """Members hear of the same death, and of what follows from it, in different orders; in each of these, some that
    lived were lost: they had heard first that others take over, and had turned away.
    """

    @virtually
    async def main() -> None:
        rng = random.Random(seed)
        victim = rng.randrange(6)
        world = World(6, seed=seed, up_bytes_per_s=RATE, down_bytes_per_s=RATE, latency_s=0.001)
        hosts = [party.network for party in world.parties]
        for one in range(6):
            for other in range(one):
                world.internet.set_latency(hosts[one], hosts[other], rng.uniform(0.001, 0.03))
        await connect_all(world)
        later(0.02, lambda: world.internet.kill(hosts[victim]))
        plan = world.divide(LAYOUT, two_sites([0, 1, 2], [3, 4, 5]))
        results, outcomes = await world.reduce(plan, LAYOUT, list(vectors_of(6)), [1] * 6)
        await world.close()
        kept = [member for member in range(6) if member != victim]
        assert all(isinstance(outcomes[member], RoundOutcome) for member in kept), outcomes
        assert all(torch.equal(results[member], results[kept[0]]) for member in kept)
        assert_mean_of_those_who_live(results[kept[0]], kept)

    main()
