"""Group formation in whole swarms: everybody who can take part does, in one group (rows S3 and S13 of the specs).

Groups of up to 64 are formed in `test_formation`, without gossip and rounds.
"""

from __future__ import annotations

import asyncio
import math
import random

import pytest

from minga.averaging.election import ranking
from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.simulated_peer import TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from tests.worlds.seeds import seeds, soaked
from tests.worlds.swarm_tools import (
    assert_equal_states,
    assert_one_group_per_step,
    grow,
    later,
    longest_gap_s,
    make_spec,
    offences,
    rounds,
    same_step,
    virtually,
)


@virtually
async def meet(peers: int, seed: int, latency_s: float, skew_s: float, steps: int, clients: int = 0) -> Swarm:
    """A swarm of newcomers that takes a few steps; latencies up to `latency_s` one way, clocks wrong by `skew_s`."""
    rng = random.Random(seed)
    trainers = [TrainerSettings(rng.choice((1, 2, 4)), rng.uniform(0.1, 0.4), jitter=0.1) for _ in range(peers)]
    seconds_per_step = 3.0 + 6.0 * latency_s
    batch = math.ceil(sum(trainer.samples_per_second for trainer in trainers) * seconds_per_step)
    swarm = Swarm(make_spec(batch), seed=seed)
    for index, trainer in enumerate(trainers):
        host = HostSettings(
            latency_s=rng.uniform(0.0, latency_s / 2),
            clock_skew_s=rng.uniform(-skew_s, skew_s),
            dialable=index == 0 or index < peers - clients,
        )
        swarm.add(host, trainer)
    try:
        await swarm.run_until_step(steps, limit_s=60 * steps)
        await assert_equal_states(swarm)
    finally:
        events = len(swarm.log.events)
        await swarm.close()
        del swarm.log.events[events:]
    return swarm


@pytest.mark.parametrize(
    ("peers", "latency_s", "clients"),
    [
        (2, 0.0, 1),
        (5, 0.5, 2),
        *(soaked(*each) for each in ((2, 0.5, 0), (3, 0.0, 0), (8, 0.2, 0), (8, 0.5, 7), (16, 0.3, 4))),
    ],
)
def test_everybody_is_in_the_one_group_of_each_step(peers: int, latency_s: float, clients: int) -> None:
    steps = 3
    swarm = meet(peers, 10 * peers, latency_s, 3.0, steps, clients)
    assert_one_group_per_step(swarm)
    assert offences(swarm) == []
    for step, groups in rounds(swarm).items():
        (members,) = groups.values()
        if 1 <= step < steps:  # the first group may close before the last newcomer has found the run
            assert len(members) == peers


@pytest.mark.parametrize("seed", seeds(1, of=3))
def test_two_groups_that_started_apart_become_one(seed: int) -> None:
    @virtually
    async def main() -> None:
        swarm = Swarm(make_spec(1000), seed=seed)
        first = [swarm.add(name="a-0", entries=[])]
        first += [swarm.add(name=f"a-{i}", entries=[first[0].network.address]) for i in (1, 2)]
        second = [swarm.add(name="b-0", entries=[])]
        second += [swarm.add(name="b-1", entries=[second[0].network.address])]
        try:
            await asyncio.sleep(3.0)
            assert {peer.session.board.alive_count for peer in first} == {3}
            assert {peer.session.board.alive_count for peer in second} == {2}
            # Somebody who was given addresses of both brings them together.
            swarm.add(name="c", entries=[first[0].network.address])
            await second[0].session.node.dial(first[1].network.address)
            await second[0].session.gossip.synchronise(first[1].network.peer_id)
            await swarm.run_until_step(1, limit_s=60)
            await swarm.run_until_step(3, limit_s=60)
            assert_one_group_per_step(swarm)
            assert {len(m) for g in rounds(swarm, "round.reduced").values() for m in g.values()} == {6}
            await assert_equal_states(swarm)
        finally:
            await swarm.close()

    main()


def test_of_two_that_trained_apart_the_organisers_history_counts_and_not_the_higher_step() -> None:
    @virtually
    async def main() -> None:
        swarm = Swarm(make_spec(16, digest_every=1000), seed=1)
        slow, quick = swarm.add(trainer=TrainerSettings(4, 0.4)), swarm.add(trainer=TrainerSettings(4, 0.05))
        try:
            await swarm.run_until_step(4, limit_s=60)
            await same_step(swarm)
            swarm.internet.cut(slow.name, quick.name)
            await asyncio.sleep(20.0)
            alone, before = slow.replica.lineage.rounds, slow.replica.step
            assert quick.replica.step > before + 5, "it takes steps faster, and that is worth nothing"
            swarm.internet.restore(slow.name, quick.name)
            await asyncio.sleep(10.0)
            gave_way = [e for e in swarm.log.of("sync.finished") if e.event.fields["step"] >= before]
            assert {e.peer for e in gave_way} == {quick.name}
            assert alone != quick.replica.lineage.rounds
            await swarm.run_until_step(max(slow.replica.step, quick.replica.step) + 3, limit_s=60)
            await assert_equal_states(swarm)
            assert swarm.log.of("step.applied")[-1].event.fields["members"] == 2
        finally:
            await swarm.close()

    main()


@pytest.mark.parametrize(("peers", "cut_s", "seed"), [(5, 4.0, 1), soaked(5, 10.0, 2), soaked(7, 4.0, 3)])
def test_a_leader_that_most_do_not_hear_is_overtaken(peers: int, cut_s: float, seed: int) -> None:
    """The first in rank is heard by the second only, who follows it while the others ask the second to lead."""

    @virtually
    async def main() -> Swarm:
        swarm = Swarm(make_spec(96), seed=seed)
        grow(swarm, peers, random.Random(seed))
        try:
            await swarm.run_until_step(3, limit_s=60)
            await same_step(swarm)
            step = max(peer.replica.step for peer in swarm.alive())
            await asyncio.sleep(0.3)
            order = ranking(swarm.spec.run_id, step, [peer.network.peer_id for peer in swarm.peers.values()])
            first, _, *rest = map(swarm.name_of, order)
            for other in rest:
                swarm.internet.cut(first, other)
                later(cut_s, lambda other=other: swarm.internet.restore(first, other))
            await swarm.run_until_step(step + 3, limit_s=120)
            await assert_equal_states(swarm)
        finally:
            await swarm.close()
        return swarm

    swarm = main()
    assert_one_group_per_step(swarm)
    assert offences(swarm) == []
    assert longest_gap_s(swarm) < cut_s + 25.0
