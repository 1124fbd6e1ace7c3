"""Swarms whose peers step alone and average how far they moved, with an account of what became of each movement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from minga.averaging.allreduce.round import RoundOutcome
from minga.averaging.allreduce.service import AllReduce
from minga.averaging.codecs.registry import CODECS
from minga.averaging.codecs.residual import ContributionFate
from minga.averaging.messages import Plan
from minga.averaging.sketches.interface import SKETCHES
from minga.averaging.strategy_choice import STRATEGIES, StrategyFacts
from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.training.strategy.interface import Recovery
from tests.worlds import loudest_codec, sketches
from tests.worlds.extension_world import EXTRAS
from tests.worlds.swarm_tools import make_spec, pull, vector_replica

NUMEL = 48
LOSSY: dict[str, dict[str, Any]] = {
    "codec": {"codec": "loudest", "download_codec": "float32"},
    "sketch": {"codec": "float32", "sketch": "some_elements"},
}


class Account:
    """What all peers of one swarm moved, and what the means applied of it: mass, which is movement times samples."""

    def __init__(self) -> None:
        self.moved = torch.zeros(NUMEL, dtype=torch.float64)
        self.applied: dict[int, torch.Tensor] = {}
        self.fates: dict[int, list[ContributionFate]] = defaultdict(list)
        self.recoveries: list[Recovery] = []
        self.weights: dict[str, int] = defaultdict(int)
        self._results: dict[int, str] = {}

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Register the strategy, the codec and the sketch, and look into rounds."""
        patch.syspath_prepend(str(EXTRAS))
        patch.setitem(CODECS._builtin, "loudest", loudest_codec.ENTRY)
        for name, entry in sketches.ENTRIES.items():
            patch.setitem(SKETCHES._builtin, name, entry)
        patch.setitem(STRATEGIES._builtin, "movements", "tests.worlds.local_movements:movements")
        patch.setitem(STRATEGIES._loaded, "movements", movements(self))
        reduce, account = AllReduce.reduce, self

        async def recorded(
            self: AllReduce, plan: Plan, layout: Any, local: Any, weight: int, *rest: Any, **named: Any
        ) -> RoundOutcome:
            if local is not None and not plan.adopts:
                account.weights[plan.round_id] += weight
            outcome = await reduce(self, plan, layout, local, weight, *rest, **named)
            account._results[plan.step + 1] = plan.result_id
            return outcome

        patch.setattr(AllReduce, "reduce", recorded)

    def note_mean(self, step: int, mean: torch.Tensor, fate: ContributionFate) -> None:
        """A peer absorbs the mean that leads to `step`."""
        self.applied[step] = self.weights[self._results[step]] * mean[:NUMEL].double()
        self.fates[step].append(fate)

    def missing(self, peers: list[SimulatedPeer]) -> float:
        """The share of what was moved that neither was applied nor is kept by one of these peers; or the surplus."""
        kept = torch.zeros(NUMEL, dtype=torch.float64)
        for peer in peers:
            member, replica = peer.session.member, peer.replica
            for residual in member.vectors.left_out._by_subject.values():  # type: ignore[union-attr]
                kept += residual.mass[:NUMEL].double()
            kept += replica._projections.masses[:NUMEL].double()  # type: ignore[attr-defined]
            kept += (replica.read_values() - peer.port._strategy.anchor)[:NUMEL].double()  # type: ignore[union-attr]
        rest = self.moved - sum(self.applied.values()) - kept
        return float(rest.norm() / self.moved.norm())


def movements(account: Account) -> type[Any]:
    """The strategy: each peer steps alone, and a round takes the mean of how far peers moved for each sample."""
    import minga_extras.local_sgd

    class Movements(minga_extras.local_sgd.LocalSGD):  # type: ignore[misc]
        facts = StrategyFacts(
            max_in_flight=0, keeps_late_micro_batches=False, vectors=2, payload="pseudo-gradient", keeps_uncounted=True
        )

        def micro_batch(self, samples: int) -> bool:
            before = self.replica.read_values().double()
            done = bool(super().micro_batch(samples))
            account.moved += (self.replica.read_values().double() - before)[:NUMEL]
            return done

        def contribution(self) -> tuple[torch.Tensor | None, int]:
            if self.samples and self.sealed is None:
                self.sealed = (self.replica.read_values() - self.anchor) / self.samples
            return self.sealed, self.samples

        def absorb(self, round: int, mean: torch.Tensor, fate: ContributionFate) -> None:
            account.note_mean(round, mean, fate)
            super().absorb(round, self.anchor + mean, fate)

        def restored(self, shared: Mapping[str, torch.Tensor], round: int, local: Any) -> None:
            if shared and round:
                account.recoveries.append(Recovery.FETCH if local is None else Recovery.REBASE)
            super().restored(shared, round, local)

    return Movements


def moving_swarm(lossy: str, steps: int) -> tuple[Swarm, list[SimulatedPeer]]:
    """Three peers for so many steps; what `lossy` names leaves something out."""
    training = {"strategy": "movements", "stop_after_steps": steps}
    spec = make_spec(12, averaging=LOSSY[lossy], training=training)
    swarm = Swarm(spec, make_replica=vector_replica(NUMEL), gradient=pull, seed=4)
    return swarm, [swarm.add(HostSettings(latency_s=0.02), TrainerSettings(1, 0.1)) for _ in range(3)]
