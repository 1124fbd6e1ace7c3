"""Where all peers weigh the same, what a sketch leaves out of a contribution weighs the same, too."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch

from minga.averaging.allreduce.round import RoundOutcome
from minga.averaging.allreduce.service import AllReduce
from minga.averaging.codecs.residual import ContributionFate
from minga.averaging.messages import Plan
from minga.averaging.sketches.interface import SKETCHES
from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.training.life.member import Member
from minga.training.replica.replica import Replica
from minga.training.strategy.centred import Centred
from tests.worlds import sketches
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import assert_equal_states, make_spec, offences, vector_replica, virtually

ROWS, NUMEL, STEPS = 32, 32 * 32, 8
SPEEDS = (0.1, 0.16, 0.25)
"""Seconds of a micro-batch: each peer has other samples, and each other ones in most rounds."""


def pull_apart(peer: SimulatedPeer, samples: int) -> float:
    """The gradient of the distance to a random matrix of full rank."""
    generator = torch.Generator().manual_seed(peer.samples_done * 1009 + int(peer.network.peer_id[:8], 16))
    for weight in peer.replica.vector.parameters():
        weight.grad = weight.detach() - torch.randn(weight.shape, generator=generator)
    return 0.0


class Springs:
    """How far peers were from the centre by the round, how many gave that, and the means that all absorbed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.distances: dict[int, dict[int, torch.Tensor]] = defaultdict(dict)
        self.samples: dict[int, set[int]] = defaultdict(set)
        self.weights: dict[int, int] = defaultdict(int)
        self.means: dict[int, torch.Tensor] = {}
        project, absorb, contribution, reduce = (
            Replica.project,
            Centred.absorb,
            Centred.contribution,
            AllReduce.reduce,
        )
        springs = self

        def projected(self: Replica, vector: torch.Tensor | None, weight: int, step: int, *rest: Any) -> Any:
            if vector is not None:
                springs.distances[step][id(self)] = vector.double()
            return project(self, vector, weight, step, *rest)

        def absorbed(self: Centred, round: int, mean: torch.Tensor, fate: ContributionFate) -> None:
            springs.means[round - 1] = mean.double()
            absorb(self, round, mean, fate)

        def contributed(self: Centred) -> tuple[torch.Tensor | None, int]:
            found = contribution(self)
            springs.samples[self.replica.step].add(found[1])
            return found

        async def reduced(
            self: AllReduce, plan: Plan, layout: Any, local: Any, weight: int, *rest: Any, **named: Any
        ) -> RoundOutcome:
            springs.weights[plan.step] += weight if local is not None else 0
            return await reduce(self, plan, layout, local, weight, *rest, **named)

        patch.setattr(Replica, "project", projected)
        patch.setattr(Centred, "absorb", absorbed)
        patch.setattr(Centred, "contribution", contributed)
        patch.setattr(AllReduce, "reduce", reduced)


@pytest.mark.parametrize("sketch", [soaked("some_elements"), "powersgd(rank=2, start=2)"])
def test_all_distances_are_in_the_means_or_left_out_by_one_peer(sketch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each counts as much as any other, whatever samples it had, and so does what a sketch keeps of it."""
    for name, entry in sketches.ENTRIES.items():
        monkeypatch.setitem(SKETCHES._builtin, name, entry)
    springs = Springs(monkeypatch)

    @virtually
    async def main() -> None:
        averaging = {"codec": "float32", "sketch": sketch}
        spec = make_spec(24, averaging=averaging, training={"strategy": "elastic", "stop_after_steps": STEPS})
        swarm = Swarm(spec, make_replica=vector_replica(NUMEL, rows=ROWS), gradient=pull_apart, seed=2)
        peers = [swarm.add(HostSettings(latency_s=0.02), TrainerSettings(2, each, jitter=0.3)) for each in SPEEDS]
        try:
            for peer in peers:
                await peer.ended.wait()
            await assert_equal_states(swarm)
            left_out = sum(peer.replica._projections.masses.double() for peer in peers)  # type: ignore[attr-defined]
        finally:
            await swarm.close()
        assert not swarm.log.of("round.aborted")
        assert float(left_out.norm()) > 1.0  # type: ignore[union-attr]
        assert len(springs.means) == STEPS
        assert any(len(each) > 1 for each in springs.samples.values())
        moved = sum(vector for each in springs.distances.values() for vector in each.values())
        applied = sum(springs.weights[step] * mean for step, mean in springs.means.items())
        rest = (moved - applied)[:NUMEL] - left_out
        assert float(rest.norm() / moved.norm()) < 1e-5  # type: ignore[union-attr]

    main()


def test_a_peer_that_weighs_more_than_all_others_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client says in each round that it counts fifty times. The others go on without it, and say who it was."""
    liars: list[str] = []
    weight = Member._weight
    monkeypatch.setattr(
        Member, "_weight", lambda self, *rest: 50 if self._node.peer_id in liars else weight(self, *rest)
    )

    @virtually
    async def main() -> None:
        spec = make_spec(12, training={"strategy": "elastic"})
        swarm = Swarm(spec, make_replica=vector_replica(NUMEL, rows=ROWS), gradient=pull_apart, seed=2)
        honest = [swarm.add(HostSettings(latency_s=0.02), TrainerSettings(2, 0.1)).name for _ in range(3)]
        liar = swarm.add(HostSettings(latency_s=0.02, dialable=False), TrainerSettings(2, 0.1))
        liars.append(liar.network.peer_id)
        try:
            await swarm.run_until_step(4, peers=honest, limit_s=300)
            await assert_equal_states(swarm, honest)
            named = offences(swarm)
            assert {culprit for _, culprit, _ in named} == {liar.name}
            assert all("a weight of 50 where 1 is the most" in what for _, _, what in named)
        finally:
            await swarm.close()

    main()
