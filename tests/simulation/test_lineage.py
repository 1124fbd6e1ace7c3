"""Peers that come late, load slowly, die and come back, with wrong clocks, copied keys, cut links and regroups: the
weights are the founder's, and one history goes on.
"""

from __future__ import annotations

import asyncio

import pytest

from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.simulated_peer import TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from tests.worlds.lineage_play import play_story
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import assert_equal_states, make_spec, pull, vector_replica, virtually

pytestmark = pytest.mark.promise("whose-state-is-the-runs")

FOUNDER_DIES, COPIES, REGROUPED = 69, 41, 135
EVENTFUL = (FOUNDER_DIES, REGROUPED, *map(soaked, (COPIES, 12, 16, 29, 32, 44, 53, 75, 80, 85)))
"""Seeds that play much. In the first the organiser is killed when it founds the run, and again when others have its
state; in the second the organisers regroup the run as it ends behind a cut; in the third machines come with copies of
its key and of another one, as in `test_clocks_and_keys`.
"""


@pytest.mark.parametrize("seed", EVENTFUL)
def test_the_weights_are_the_founders_and_all_end_in_one_history(seed: int) -> None:
    ending = play_story(seed)
    assert (ending.foreign, ending.apart, ending.idle, ending.errors) == ((), (), (), [])


@pytest.mark.parametrize(("hosts", "auxiliary"), [(1, True), *map(soaked, (2, 1), (True, False))])
@virtually
async def test_hosts_that_come_back_from_a_checkpoint_take_what_their_clients_have(hosts: int, auxiliary: bool) -> None:
    """All that can be dialled were killed: clients alone take no step, and their state is the newest."""
    spec, trains = make_spec(16), TrainerSettings(4, 0.3)
    swarm = Swarm(spec, seed=3, make_replica=vector_replica(1000), gradient=pull, checkpoint_every=10)
    names = [f"host-{index}" for index in range(hosts)]
    for name in names:
        swarm.add(HostSettings(), None if auxiliary else trains, auxiliary=auxiliary, name=name)
    clients = [swarm.add(HostSettings(dialable=False), trains, name=f"client-{index}") for index in range(3)]
    await swarm.run_until_step(13)
    for name in names:
        swarm.internet.kill(name)
    await asyncio.sleep(10.0)
    killed_s, before = asyncio.get_running_loop().time(), max(client.replica.step for client in clients)
    for name in names:
        entries = [swarm.peers[each].network.address for each in names[: names.index(name)]]
        assert swarm.restart(name, entries=entries).replica.step == 10
    await asyncio.sleep(1.0)
    for client in clients:
        for name in names:
            client.network.process.run(client.session.node.dial(swarm.peers[name].network.address))
    await swarm.run_until_step(before + 2, limit_s=60.0)
    assert {peer.replica.lineage.solo for peer in swarm.alive()} == {0}
    fetched = {logged.peer for logged in swarm.log.of("sync.finished") if logged.event.time > killed_s}
    assert fetched == set(names)
    await assert_equal_states(swarm)
    await swarm.close()
