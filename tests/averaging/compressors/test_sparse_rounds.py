"""Sparse vectors in the all-reduce and in whole swarms: whatever dies, no mass is lost and all peers hold one state."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection

import pytest
import torch

from minga.averaging.allreduce.round import Round, RoundOutcome
from minga.averaging.allreduce.service import RoundAbortedError
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.residual import Residual
from minga.averaging.solver.division import Division, PartShare
from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.simulated_peer import TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from tests.averaging.allreduce.test_two_level import connect_all
from tests.worlds.mass_account import MassAccount
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
FLAT = Division(tuple(PartShare(0.25, root, ()) for root in range(4)), ())
HALVES = Division((PartShare(0.5, 0, ()), PartShare(0.5, 3, ())), ())
SITES = Division((PartShare(0.5, 0, (0, 2)), PartShare(0.5, 3, (1, 3))), ((0, 1), (2, 3)))
PAIRS = pytest.mark.parametrize(("up", "down"), [("topk(values=2bit)", "gtopk(k=64)"), ("randomk", "union")])


@PAIRS
def test_rounds_conserve_mass(up: str, down: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four members, one of which comes to nothing but receiving."""
    account, layout = MassAccount(NUMEL, monkeypatch), VectorLayout(LAYOUT_NUMELS, up, down)

    @virtually
    async def main() -> None:
        world, generator = World(4), torch.Generator().manual_seed(1)
        await world.start()
        residuals = [Residual(NUMEL) for _ in world.parties]
        for step in range(10):
            plan = world.divide(layout, FLAT, chunk_bytes=1024, step=step)
            vectors = [torch.randn(NUMEL, generator=generator) for _ in world.parties]
            results, outcomes = await world.reduce(plan, layout, vectors, [3, 0, 500_000, 2], residuals=residuals)
            assert all(isinstance(outcome, RoundOutcome) for outcome in outcomes), outcomes
            assert all(torch.equal(result, results[0]) for result in results)
            assert float((results[0] != 0).float().mean()) < 0.07
        account.check_means()
        assert not residuals[1].mass.any()
        parties = [(party.peer_id, residual) for party, residual in zip(world.parties, residuals, strict=True)]
        assert account.balance([parties[0], *parties[2:]]) < MOST_LOST
        await world.close()

    main()


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


@PAIRS
def test_an_aggregator_that_dies_after_half_have_its_result(
    up: str, down: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its part is fetched from those that have it, who say whose chunks are in it. All hold the same mean, and each
    keeps what of its own it lacks.
    """
    account, layout = MassAccount(NUMEL, monkeypatch), VectorLayout(LAYOUT_NUMELS, up, down)
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


@PAIRS
def test_a_link_that_breaks_costs_nothing_of_what_was_to_go_over_it(
    up: str, down: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both members live. Each fetches what the other reduced, without it, from a third one."""
    account, layout = MassAccount(NUMEL, monkeypatch), VectorLayout(LAYOUT_NUMELS, up, down)

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
        ("gtopk", 3, 20),
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
