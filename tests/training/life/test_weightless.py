"""Members without a contribution: they receive like all others, and a round of which nobody has any changes nothing."""

from __future__ import annotations

import asyncio
import math

import pytest
import torch

from minga.averaging.messages import Plan
from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.training.life.member import Member
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import assert_equal_states, make_spec, offences, pull, rounds, vector_replica, virtually

NUMEL = 70_000  # so many that a micro-batch is added without a look at each element


def test_if_nobody_has_samples_the_round_is_void_and_no_step_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    contribution, withheld = Member._contribution, [True]

    async def nothing_at_step_2(self: Member, plan: Plan) -> tuple[torch.Tensor | None, int, int]:
        found = await contribution(self, plan)
        return (None, 0, 0) if self.step == 2 and withheld[0] else found

    monkeypatch.setattr(Member, "_contribution", nothing_at_step_2)

    @virtually
    async def main() -> None:
        swarm = Swarm(make_spec(6), make_replica=vector_replica(20), gradient=pull)
        for _ in range(3):
            swarm.add(HostSettings(), TrainerSettings(1, 0.1))
        try:
            await swarm.run_until_step(2, limit_s=60)
            await asyncio.sleep(2)
            assert {peer.replica.step for peer in swarm.peers.values()} == {2}
            aborted = {str(logged.event.fields["why"]) for logged in swarm.log.of("round.aborted")}
            assert "nobody's samples reached this aggregator" in aborted
            withheld[0] = False
            await swarm.run_until_step(5, limit_s=60)  # what was sealed counts again
            await assert_equal_states(swarm)
            assert not offences(swarm)
        finally:
            await swarm.close()

    main()


@pytest.mark.parametrize("strategy", [soaked("synchronous"), "delayed"])
def test_a_sum_that_is_not_finite_is_left_out_of_its_step_with_a_warning(
    strategy: str, caplog: pytest.LogCaptureFixture
) -> None:
    @virtually
    async def main() -> None:
        def gradient(peer: SimulatedPeer, samples: int) -> None:
            pull(peer, samples)
            if peer.name == "peer-1" and 3 <= peer.replica.step < 6:
                (weight,) = peer.replica.vector.parameters()  # type: ignore[attr-defined]
                weight.grad[0, 5] = math.nan

        spec = make_spec(6, training={"strategy": strategy})
        swarm = Swarm(spec, make_replica=vector_replica(NUMEL), gradient=gradient)
        for _ in range(3):
            swarm.add(HostSettings(), TrainerSettings(1, 0.1))
        try:
            await swarm.run_until_step(8, limit_s=120)
            await assert_equal_states(swarm)
            samples = {
                step: members["peer-1"]
                for step, groups in rounds(swarm, "round.begun").items()
                for members in groups.values()
                if "peer-1" in members
            }
            assert samples[4] == samples[5] == 0
            assert samples[1] > 0
            assert samples[7] > 0
            assert "left out of step: the sum of the gradients of" in caplog.text
            assert all(peer.replica.read_values().isfinite().all() for peer in swarm.peers.values())
            assert not offences(swarm)
        finally:
            await swarm.close()

    main()
