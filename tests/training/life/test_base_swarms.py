"""A swarm on a base, in runs whose members check each other, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import torch

from minga.core.errors import UnfitError
from minga.core.spec.run_spec import RunSpec
from minga.network.virtual.internet import HostSettings
from minga.optim import SGD
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.training.record_kinds import MAX_WHY_CHARACTERS
from minga.training.replica.replica import Replica
from tests.worlds.swarm_tools import make_spec, offences, virtually


def on_bases(*seeds: int) -> Callable[..., Replica]:
    """One after the other, each with a base of its seed below the layer that is trained."""
    left = list(seeds)

    def make(spec: RunSpec) -> Replica:
        torch.manual_seed(left.pop(0))
        base = torch.nn.Linear(500, 6).requires_grad_(False)
        torch.manual_seed(1)
        head = torch.nn.Linear(6, 3)
        return Replica(spec, SGD(head.parameters(), lr=0.1), model=torch.nn.Sequential(base, head))

    return make


@virtually
async def test_a_newcomer_becomes_a_member_on_the_base_of_the_run_alone() -> None:
    security = {"verification": "byzantine", "founders": 3, "probation_steps": 2}
    swarm = Swarm(make_spec(6, security=security), seed=3, make_replica=on_bases(0, 0, 0, 2, 0))

    def add() -> SimulatedPeer:
        return swarm.add(HostSettings(latency_s=0.02), TrainerSettings(1, 0.1))

    peers = [add() for _ in range(3)]
    try:
        await swarm.run_until_step(2, limit_s=200)
        other = add()
        await asyncio.wait_for(other.ended.wait(), 60)
        assert isinstance(other.error, UnfitError)
        assert str(other.error).startswith("`0.weight` is frozen and has other values in the run than in this program")
        await asyncio.sleep(1)
        told = {(each.peer, str(each.event.fields["why"])) for each in swarm.log.of("member.unfit")}
        assert told == {(peer.name, str(other.error)[:MAX_WHY_CHARACTERS]) for peer in peers}
        newcomer = add()
        while len(swarm.log.of("secure.admitted")) < 4:
            await asyncio.sleep(0.1)
        names = [peer.name for peer in (*peers, newcomer)]
        await swarm.run_until_step(newcomer.replica.step + 2, limit_s=200, peers=names)
        admitted = {(each.peer, each.event.fields["peer"]) for each in swarm.log.of("secure.admitted")}
        assert admitted == {(peer.name, newcomer.network.peer_id) for peer in (*peers, newcomer)}
        applied = [each.event.fields for each in swarm.log.of("step.applied") if each.peer == newcomer.name]
        counted = [int(str(fields["samples"])) for fields in applied]
        assert counted == sorted(counted), "nothing on probation, then like everybody"
        assert (counted[0], counted[-1] > 0) == (0, True)
        assert not offences(swarm)
        assert {entry.name for entry in newcomer.replica.capture().tensors} == {"model/1.bias", "model/1.weight"}
    finally:
        await swarm.close()
