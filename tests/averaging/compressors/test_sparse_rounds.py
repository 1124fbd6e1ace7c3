"""Sparse vectors in the all-reduce and in whole swarms: whatever dies, no mass is lost and all peers hold one state."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any

import pytest
import torch

from minga.averaging.allreduce.round import Round, RoundOutcome
from minga.averaging.allreduce.service import RoundAbortedError
from minga.averaging.codecs.layout import Chunk, VectorLayout
from minga.averaging.codecs.residual import Residual
from minga.averaging.solver.division import Division, PartShare
from minga.core.errors import NonFiniteError
from minga.network.interface import PeerId
from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.simulated_peer import TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from tests.averaging.allreduce.test_two_level import connect_all
from tests.worlds.reduce_world import World
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import (
    assert_equal_states,
    kill_in_a_round,
    later,
    make_spec,
    pull,
    vector_replica,
    virtually,
)

LAYOUT_NUMELS = (9000, 4096)
NUMEL = sum(LAYOUT_NUMELS)
MOST_LOST = 1e-5
FLOAT16_STEP = 2.0**-11
HALVES = Division((PartShare(0.5, 0, ()), PartShare(0.5, 3, ())), ())
SITES = Division((PartShare(0.5, 0, (0, 2)), PartShare(0.5, 3, (1, 3))), ((0, 1), (2, 3)))
PAIR = ("topk(values=2bit)", "gtopk(k=64)")


class MassAccount:
    """Looks into all rounds of one test, which are over one vector of `numel` elements with sparse uploads and means.

    Mass is a value times its samples. A peer that dies takes with it what it has not committed: its own lines of the
    account are not balanced any more, but what others took of it still is.
    """

    def __init__(self, numel: int, patch: pytest.MonkeyPatch) -> None:
        self.brought: dict[PeerId, torch.Tensor] = defaultdict(lambda: torch.zeros(numel, dtype=torch.float64))
        self.taken: dict[PeerId, torch.Tensor] = defaultdict(lambda: torch.zeros(numel, dtype=torch.float64))
        self.means: dict[str, torch.Tensor] = {}
        """The means of the rounds that count, by the ids of the rounds that made them."""
        self.lost = 0
        """Rounds whose result is not that of all members."""
        self._given: dict[tuple[str, PeerId], tuple[int, torch.Tensor]] = {}
        self._counted: dict[str, dict[int, frozenset[PeerId]]] = defaultdict(dict)
        self._chunks: dict[str, list[Chunk]] = {}
        self._committed: set[tuple[str, PeerId]] = set()
        self._install(patch)

    def _install(self, patch: pytest.MonkeyPatch) -> None:
        begin, note_fate, keep, account = Round.__init__, Round.note_fate, Round.keep_residual, self

        def begun(self: Round, *arguments: Any, **named: Any) -> None:
            begin(self, *arguments, **named)
            account._chunks[self.plan.round_id] = self.chunks
            if self.own is not None and not self.plan.adopts:
                account._note_given(self)

        def noted(self: Round, index: int, counted: Collection[int]) -> None:
            note_fate(self, index, counted)
            account._counted[self.plan.round_id][index] = frozenset(self.members[each] for each in counted)

        def kept(self: Round) -> None:
            keep(self)
            account._note_commit(self)

        for name, patched in (("__init__", begun), ("note_fate", noted), ("keep_residual", kept)):
            patch.setattr(Round, name, patched)

    def _note_given(self, round: Round) -> None:
        assert round.own is not None
        chunks = [chunk for chunk in round.chunks if chunk.numel > 1]  # the last says that there were gradients
        assert all(chunk.codecs.encodes_own for chunk in chunks), "else it matters who reduces a chunk"
        try:
            shares = torch.cat([round.own.own_share(chunk) for chunk in round.chunks])
        except NonFiniteError:
            return
        self._given[round.plan.round_id, round.node.peer_id] = round.own.weight, shares

    def _note_commit(self, round: Round) -> None:
        """A member has the committed result; `plan.result_id` is the round that made it."""
        result_id, me = round.plan.result_id, round.node.peer_id
        if result_id in self.means and not torch.equal(self.means[result_id], round.result):
            self.lost += 1
        self.means.setdefault(result_id, round.result.clone())
        if round.own is not None:
            self.brought[me] += round.own.weight * round.own._vector.double()
        if (result_id, me) in self._given:
            self._committed.add((result_id, me))

    def balance(self, peers: Iterable[tuple[PeerId, Residual]]) -> float:
        """The largest share of what a peer brought that is neither in a mean nor kept by it; or the surplus."""
        for result_id, member in self._given:
            if result_id in self.means:
                self.taken[member] += self._share_taken(result_id, member)
        wrong = [
            (self.brought[peer] - self.taken[peer] - residual.mass.double()).norm() / self.brought[peer].norm()
            for peer, residual in peers
        ]
        return max(map(float, wrong))

    def _share_taken(self, result_id: str, member: PeerId) -> torch.Tensor:
        weight, shares = self._given[result_id, member]
        taken, mean = torch.zeros_like(shares, dtype=torch.float64), self.means[result_id]
        for index, chunk in enumerate(self._chunks[result_id]):
            if member in self._counted[result_id].get(index, frozenset()):
                part = slice(chunk.start, chunk.stop)
                kept = mean[part] != 0.0 if chunk.codecs.download.returns else torch.ones_like(mean[part])
                taken[part] = weight * shares[part].double() * kept
        return taken

    def check_means(self) -> None:
        """Each mean is the weighted mean of what it took up, but for the rounding of float16."""
        for result_id, mean in self.means.items():
            total, size, weight = torch.zeros(3, mean.numel(), dtype=torch.float64)
            for round_id, member in self._given:
                if round_id == result_id:
                    share = self._share_taken(result_id, member)
                    total, size = total + share, size + share.abs()
            for index, chunk in enumerate(self._chunks[result_id]):
                weights = [self._given[result_id, m][0] for m in self._counted[result_id][index]]
                weight[chunk.start : chunk.stop] = sum(weights)
            wanted = total / weight
            close = (mean.double() - wanted).abs() <= FLOAT16_STEP * wanted.abs() + 2.0**-22 * size / weight + 2.0**-25
            assert bool(close.all()), f"the mean of {result_id} is not what it took up"


def test_relays_pass_on_all_of_their_sites() -> None:
    """The means over sites are those of a flat round, but for the rounding of what a relay sends to the root."""
    layout = VectorLayout(LAYOUT_NUMELS, "topk", "gtopk")

    @virtually
    async def main() -> None:
        world, generator = World(4), torch.Generator().manual_seed(1)
        await world.start()
        vectors = [torch.randn(NUMEL, generator=generator) for _ in world.parties]
        found, kept = [], []
        for step, division in enumerate((HALVES, SITES)):
            residuals = [Residual(NUMEL) for _ in world.parties]
            plan = world.divide(layout, division, chunk_bytes=1024, step=step)
            results, outcomes = await world.reduce(plan, layout, vectors, [3, 1, 5, 2], residuals=residuals)
            assert all(isinstance(outcome, RoundOutcome) for outcome in outcomes), outcomes
            assert all(torch.equal(result, results[0]) for result in results)
            found.append(results[0])
            kept.append(sum(residual.mass for residual in residuals))
        alike = (found[0] != 0) == (found[1] != 0)  # all but what is as large as what is the least that is kept
        assert float(alike.float().mean()) > 0.999
        assert float((found[0] - found[1])[alike].abs().max()) < 0.01
        brought = 3 * vectors[0] + vectors[1] + 5 * vectors[2] + 2 * vectors[3]
        for result, left in zip(found, kept, strict=True):
            assert float((brought - 11 * result - left).norm() / brought.norm()) < 2.0**-11
        await world.close()

    main()


def test_an_aggregator_that_dies_after_half_have_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its part is fetched from those that have it, who say whose chunks are in it. All hold the same mean, and each
    keeps what of its own it lacks.
    """
    account, layout = MassAccount(NUMEL, monkeypatch), VectorLayout(LAYOUT_NUMELS, *PAIR)
    note_fate, told = Round.note_fate, set[int]()

    @virtually
    async def main() -> None:
        world, generator = World(5), torch.Generator().manual_seed(2)
        await world.start()
        dying, *living = [party.network for party in world.parties]
        plan = world.plan(layout, chunk_bytes=100_000)
        (first,) = [part for part in plan.parts if part.root == 0]

        def dies_halfway(self: Round, index: int, counted: Collection[int]) -> None:
            note_fate(self, index, counted)
            if self.me == 0 and self.chunks[index].stop <= first.stop:
                for other in living[2:]:
                    world.internet.cut(dying, other, one_way=True)
            elif self.chunks[index].stop == first.stop and len(told) < 2:
                told.add(self.me)
                if len(told) == 2:
                    world.internet.kill(dying)

        monkeypatch.setattr(Round, "note_fate", dies_halfway)
        vectors = [torch.randn(NUMEL, generator=generator) for _ in world.parties]
        residuals = [Residual(NUMEL) for _ in world.parties]
        results, outcomes = await world.reduce(plan, layout, vectors, [1, 2, 3, 4, 5], residuals=residuals)
        assert all(isinstance(outcome, RoundOutcome) for outcome in outcomes[1:]), outcomes
        assert told == {1, 2}, "others had it first"
        assert all(torch.equal(result, results[1]) for result in results[2:])
        account.check_means()
        kept = zip(world.parties[1:], residuals[1:], strict=True)
        assert account.balance((party.peer_id, residual) for party, residual in kept) < MOST_LOST
        await world.close()

    main()


def test_a_link_that_breaks_costs_nothing_of_what_was_to_go_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both members live. Each fetches what the other reduced, without it, from a third one."""
    account, layout = MassAccount(NUMEL, monkeypatch), VectorLayout(LAYOUT_NUMELS, *PAIR)

    @virtually
    async def main() -> None:
        world, generator = World(4, up_bytes_per_s=2e3, down_bytes_per_s=2e3), torch.Generator().manual_seed(2)
        await connect_all(world)
        networks = [party.network for party in world.parties]
        plan = world.plan(layout, chunk_bytes=400)
        vectors = [torch.randn(NUMEL, generator=generator) for _ in world.parties]
        residuals = [Residual(NUMEL) for _ in world.parties]
        later(0.05, lambda: world.internet.cut(networks[2], networks[3]))
        results, outcomes = await world.reduce(plan, layout, vectors, [5] * 4, residuals=residuals)
        assert all(isinstance(outcome, RoundOutcome) for outcome in outcomes), outcomes
        assert all(torch.equal(result, results[0]) for result in results)
        kept = zip(world.parties, residuals, strict=True)
        assert account.balance((party.peer_id, residual) for party, residual in kept) < MOST_LOST
        await world.close()

    main()


def test_numbers_that_cannot_be_sent_end_the_round_also_where_only_their_own_member_counts_them() -> None:
    layout = VectorLayout((5000,), "topk", "gtopk")

    @virtually
    async def main() -> None:
        world = World(2)
        await world.start()
        plan = world.plan(layout)
        wrong = torch.ones(5000)
        wrong[plan.parts[0].stop - 1] = torch.nan  # in the part that its own member reduces
        residuals = [Residual(5000) for _ in world.parties]
        _, outcomes = await world.reduce(plan, layout, [wrong, torch.ones(5000)], [1, 1], residuals=residuals)
        assert isinstance(outcomes[0], RoundAbortedError)
        assert "cannot be counted" in outcomes[0].message
        assert not residuals[0].mass.any()
        await world.close()

    main()


@pytest.mark.parametrize(
    ("down", "seed", "steps"),
    [
        ("gtopk", 3, 15),
        *(soaked(down, 3, 200) for down in ("gtopk", "union")),
        *(soaked(down, s, 600) for down in ("gtopk", "union") for s in (4, 5)),
    ],
)
def test_a_swarm_conserves_mass_whoever_dies(down: str, seed: int, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers die in the middle of rounds and others join."""
    numel = 4500
    account = MassAccount(numel + 1, monkeypatch)
    averaging = {"codec": "topk", "download_codec": down}

    @virtually
    async def main() -> None:
        chance, spec = random.Random(seed), make_spec(3, averaging=averaging, digest_every=10)
        swarm = Swarm(spec, make_replica=vector_replica(numel), gradient=pull, seed=seed)
        for _ in range(3):
            swarm.add(HostSettings(latency_s=0.02), TrainerSettings(1, 0.1))
        try:
            for step in range(steps // 5, steps, steps // 5):
                await swarm.run_until_step(step, limit_s=600)
                await kill_in_a_round(swarm, chance.choice(swarm.alive()))
                swarm.add(HostSettings(latency_s=0.02), TrainerSettings(1, 0.1))
            await swarm.run_until_step(steps, limit_s=600)
            await assert_equal_states(swarm)
            assert swarm.log.of("round.member_lost")
            await asyncio.sleep(0.01)
            members = [(peer.network.peer_id, peer.session.member) for peer in swarm.alive()]  # type: ignore[union-attr]
            assert account.lost == 0
            assert len(account.means) >= steps
            account.check_means()
            kept = [(peer, member.vectors.residual(member.step)) for peer, member in members]  # type: ignore[union-attr]
            assert account.balance(kept) < MOST_LOST  # type: ignore[arg-type]
        finally:
            await swarm.close()

    main()
