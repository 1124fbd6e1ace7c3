"""Groups in whole swarms: what started or trained apart becomes one, and a leader that few hear is overtaken.

That everybody is in one group, and groups of up to 64, are shown in `test_formation`, without gossip and rounds.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from minga.averaging.election import ranking
from minga.core.errors import ConfigurationError
from minga.core.events.averaging import RoundBegun
from minga.simulation.swarm.simulated_peer import TrainerSettings
from minga.simulation.swarm.swarm import LoggedEvent, Swarm, SwarmListener
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


@pytest.mark.parametrize("seed", seeds(1, of=3))
@virtually
async def test_two_groups_that_started_apart_become_one(seed: int) -> None:
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


@virtually
async def test_of_two_that_trained_apart_the_organisers_history_counts_and_not_the_higher_step() -> None:
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


@pytest.mark.parametrize(("peers", "cut_s", "seed"), [(5, 4.0, 1), soaked(5, 10.0, 2), soaked(7, 4.0, 3)])
@virtually
async def test_a_leader_that_most_do_not_hear_is_overtaken(peers: int, cut_s: float, seed: int) -> None:
    """The first in rank is heard by the second only, who follows it while the others ask the second to lead."""
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
    assert_one_group_per_step(swarm)
    assert offences(swarm) == []
    assert longest_gap_s(swarm) < cut_s + 25.0


class NewestRound(SwarmListener):
    """Remembers nothing but who leads."""

    leader = ""

    def add(self, logged: LoggedEvent) -> None:
        if isinstance(logged.event.data, RoundBegun):
            self.leader = logged.event.data.leader


@virtually
async def test_a_swarm_knows_who_has_a_role_whatever_its_listener_keeps_and_invents_no_log() -> None:
    listener = NewestRound()
    swarm = Swarm(make_spec(8), listener=listener)
    grow(swarm, 3, random.Random(1), clients=1)
    await swarm.run_until_step(3, limit_s=60.0)
    name = swarm._resolve("leader", None, None)
    assert name is not None
    assert swarm.peers[name].network.peer_id == listener.leader
    assert swarm._resolve("sender", None, None) == "peer-2", "who cannot be dialled"
    with pytest.raises(ConfigurationError, match="keeps no log"):
        _ = swarm.log
    await swarm.close()
