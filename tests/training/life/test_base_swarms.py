"""A swarm on a base, in runs whose members check each other, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import torch

from minga.core.errors import UnfitError
from minga.core.spec.run_spec import RunSpec
from minga.network.virtual.internet import HostSettings
from minga.optim import SGD
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.training.record_kinds import MAX_WHY_CHARACTERS
from minga.training.replica.replica import Replica
from tests.worlds.swarm_tools import assert_equal_states, make_spec, offences, pull, virtually


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


@pytest.mark.parametrize("verification", ["none", "byzantine"])
def test_a_newcomer_comes_in_on_the_base_of_the_run_alone(verification: str) -> None:
    @virtually
    async def main() -> None:
        secure = {"founders": 3, "probation_steps": 2} if verification == "byzantine" else {}
        spec = make_spec(6, security={"verification": verification, **secure})
        swarm = Swarm(spec, seed=3, make_replica=on_bases(0, 0, 0, 2, 0), gradient=pull)

        def add() -> SimulatedPeer:
            return swarm.add(HostSettings(latency_s=0.02), TrainerSettings(1, 0.1))

        peers = [add() for _ in range(3)]
        try:
            await swarm.run_until_step(3, limit_s=200)
            other = add()
            await asyncio.wait_for(other.ended.wait(), 60)
            assert isinstance(other.error, UnfitError)
            assert str(other.error).startswith(
                "`0.weight` is frozen and has other values in the run than in this program"
            )
            await asyncio.sleep(1)
            told = {(each.peer, str(each.event.fields["why"])) for each in swarm.log.of("member.unfit")}
            assert told == {(peer.name, str(other.error)[:MAX_WHY_CHARACTERS]) for peer in peers}
            peers.append(add())
            names = [peer.name for peer in peers]
            await swarm.run_until_step(peers[0].replica.step + 8, limit_s=200, peers=names)
            assert not offences(swarm)
            if verification == "none":  # members that check each other are not at one step at a time
                await assert_equal_states(swarm, names)
            assert {entry.name for entry in peers[-1].replica.capture().tensors} == {"model/1.bias", "model/1.weight"}
        finally:
            await swarm.close()

    main()
