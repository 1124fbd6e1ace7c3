"""Each movement counts once: where a round counts without a peer, where it adopts a result, where a peer rebases."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from minga.averaging.allreduce.round import Round, RoundOutcome
from minga.averaging.allreduce.service import AllReduce
from minga.averaging.codecs.registry import CODECS
from minga.averaging.codecs.residual import ContributionFate
from minga.averaging.messages import Plan
from minga.averaging.sketches.interface import SKETCHES
from minga.averaging.strategy_choice import STRATEGIES, StrategyFacts
from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.training.life.member import Member
from minga.training.strategy.interface import Recovery
from tests.worlds import loudest_codec, sketches
from tests.worlds.extension_world import EXTRAS
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import assert_equal_states, make_spec, offences, pull, vector_replica, virtually

pytestmark = pytest.mark.promise("the-model-is-right")

AT, STEPS = 4, 9
COUNTED, UNCOUNTED = ContributionFate.COUNTED, ContributionFate.UNCOUNTED
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
        patch.setitem(STRATEGIES._builtin, "movements", "in this module")
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


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Account:
    account = Account()
    account.install(monkeypatch)
    return account


@pytest.mark.parametrize(
    ("takes_part", "lossy"), [(False, "codec"), (True, "sketch"), soaked(False, "sketch"), soaked(True, "codec")]
)
def test_a_round_that_adopts_a_result_counts_each_movement_once(
    takes_part: bool, lossy: str, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result of step 4 is held and given up; the next attempt adopts it. One peer gave nothing to the first one,
    unless it `takes_part`; the trainers go on between both.
    """
    commit, contribution = Round.commit, Member._contribution
    idle: set[str] = set()

    def give_up_the_first(self: Round, term: int) -> None:
        if self.plan.step == AT and not self.plan.adopts:
            self.abort("it is cut off")
        else:
            commit(self, term)

    async def nothing_at_first(self: Member, plan: Plan) -> tuple[torch.Tensor | None, int, int]:
        found = await contribution(self, plan)
        return (None, 0, 0) if self._node.peer_id in idle and self.step == AT and not plan.adopts else found

    monkeypatch.setattr(Round, "commit", give_up_the_first)
    monkeypatch.setattr(Member, "_contribution", nothing_at_first)

    @virtually
    async def main() -> None:
        swarm, peers = moving_swarm(lossy, STEPS)
        if not takes_part:
            idle.add(peers[2].network.peer_id)
        try:
            for peer in peers:
                await peer.ended.wait()
            await assert_equal_states(swarm)
            assert swarm.log.of("round.aborted")
            wanted = [COUNTED] * 3 if takes_part else [COUNTED, COUNTED, UNCOUNTED]
            assert sorted(account.fates[AT + 1], key=str) == wanted
            assert account.missing(peers) < 1e-5
            assert not offences(swarm)
        finally:
            await swarm.close()

    main()


@pytest.mark.parametrize("lossy", ["codec", soaked("sketch")])
def test_a_peer_that_rebases_keeps_its_movements_and_they_count_once(lossy: str, account: Account) -> None:
    """It is cut off after a step, before it gave anything to the next one, and comes back when the others went on."""

    @virtually
    async def main() -> None:
        swarm, peers = moving_swarm(lossy, 18)
        others = [peer.name for peer in peers[:2]]
        try:
            while peers[2].replica.step < AT:
                await asyncio.sleep(0.005)
            for other in others:
                swarm.internet.cut(peers[2].name, other)
            await swarm.run_until_step(AT + 6, peers=others, limit_s=120)
            for other in others:
                swarm.internet.restore(peers[2].name, other)
            for peer in peers:
                await peer.ended.wait()
            await assert_equal_states(swarm)
            assert Recovery.REBASE in account.recoveries
            assert Recovery.FETCH not in account.recoveries
            assert account.missing(peers) < 1e-5
        finally:
            await swarm.close()

    main()


@pytest.mark.parametrize("lossy", [soaked("codec"), "sketch"])
def test_what_others_may_have_counted_does_not_count_again(
    lossy: str, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All commit a round but one of its members, which gave it up after it had sent everything. It fetches the state
    of the others: what is kept is no more than what was not applied.
    """
    commit = Round.commit

    def lose_the_answer(self: Round, term: int) -> None:
        if self.plan.step == AT and self.node.peer_id == self.plan.ids[-1]:  # the first one leads
            self.abort("it is cut off")
        else:
            commit(self, term)

    monkeypatch.setattr(Round, "commit", lose_the_answer)

    @virtually
    async def main() -> None:
        swarm, peers = moving_swarm(lossy, 12)
        try:
            for peer in peers:
                await peer.ended.wait()
            await assert_equal_states(swarm)
            assert Recovery.FETCH in account.recoveries
            assert Recovery.REBASE not in account.recoveries
        finally:
            await swarm.close()

    main()
