"""Each movement of each peer counts exactly once, whatever flies, dies or is given up."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Collection
from typing import Any

import msgspec
import pytest
import torch

from minga.averaging.allreduce.round import Round, RoundOutcome
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.residual import ContributionFate, Residual
from minga.averaging.solver.division import Division, PartShare
from minga.averaging.strategy_choice import STRATEGIES
from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.training.strategy.local import Local
from tests.averaging.allreduce.test_two_level import connect_all
from tests.worlds.local_peers import WIDTH, LocalPeer, mean_of
from tests.worlds.reduce_world import World
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import assert_equal_states, later, make_spec, offences, pull, vector_replica, virtually

NUMEL = 48


class Account(Local):
    """The strategy, with an account of what it moved and of what was counted of it."""

    means: dict[int, torch.Tensor]
    """By step: what was absorbed, by any peer."""
    given: dict[int, list[tuple[torch.Tensor, int]]]
    """By step: the contributions of peers that were told that theirs counted, and their weights."""

    def begin(self, replica: Any) -> None:
        super().begin(replica)
        self.moved = torch.zeros(replica.vector.numel, dtype=torch.float64)
        self.is_whole = True
        """Whether it never began anew."""

    def micro_batch(self, samples: int) -> bool:
        before = self._position().double()
        done = super().micro_batch(samples)
        self.moved += self._position().double() - before
        return done

    def absorb(self, round: int, mean: torch.Tensor, fate: ContributionFate) -> None:
        if fate is ContributionFate.COUNTED and self._sealed is not None:
            fragment, delta = self._fragments.of(round - 1), self._sealed.delta
            for run, part in self._fragments.slices(fragment):
                self.moved[run] += delta[part].double()
            self.given[round].append((delta.clone(), self._sealed.weight))
        self.means[round] = mean.clone()
        super().absorb(round, mean, fate)

    def restored(self, shared: Any, round: int, local: Any) -> None:
        self.is_whole = self.is_whole and (local is not None or round == 0)
        super().restored(shared, round, local)

    def conclude(self) -> None:
        """The run is over: what is still here is dropped."""
        self.moved -= (self._position() - self._anchor).double()
        super().conclude()

    def missing(self) -> float:
        """How much of what it moved neither counted nor is here; or the surplus."""
        here = (self._position() - self._anchor).double()
        return float((self.moved - here).norm())


def begin(
    patch: pytest.MonkeyPatch, table: dict[str, Any], steps: int, count: int
) -> tuple[Swarm, list[SimulatedPeer]]:
    kind = type("Accounted", (Account,), {"means": {}, "given": defaultdict(list)})
    patch.setitem(STRATEGIES._loaded, "local", kind)
    spec = make_spec(24, training={"strategy": "local", "stop_after_steps": steps}, strategy={"local": table})
    parts = table.get("fragments", 1)
    swarm = Swarm(spec, make_replica=vector_replica(NUMEL, parts), gradient=pull, seed=4)
    speeds = (0.1, 0.05, 0.025, 0.1, 0.1)[:count]
    return swarm, [swarm.add(HostSettings(latency_s=0.02), TrainerSettings(1, speed)) for speed in speeds]


def check(swarm: Swarm, peers: list[SimulatedPeer]) -> list[Account]:
    strategies = [peer.port._strategy for peer in peers]  # type: ignore[union-attr]
    for strategy in strategies:
        assert isinstance(strategy, Account)
        assert not strategy.is_whole or strategy.missing() < 1e-4
    first = strategies[0]
    for step, mean in first.means.items():
        if step in first.given:
            wanted = mean_of(list(first.given[step]))
            if len(first.given[step]) == len(peers):
                torch.testing.assert_close(mean, wanted, rtol=1e-4, atol=1e-5)
    assert not offences(swarm)
    return strategies


KINDS: dict[str, dict[str, Any]] = {
    "blocking": {},
    "overlapped": {"overlap": True},
    "eager": {"overlap": True, "merge": "eager"},
    "streaming": {"overlap": True, "fragments": 3},
}


TRIED = [soaked("blocking"), soaked("overlapped"), soaked("eager"), "streaming"]


@pytest.mark.parametrize("kind", TRIED)
def test_rounds_that_come_to_nothing_lose_no_movement(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of all rounds is given up when the result is there, and some of these results are adopted later."""
    rng, commit = random.Random(f"{kind} 4"), Round.commit  # by which two of four never are in doubt
    verdicts: dict[str, bool] = {}

    def maybe(self: Round, term: int) -> None:
        fails = verdicts.setdefault(self.plan.round_id, not self.plan.adopts and rng.random() < 0.35)
        if fails:
            self.abort("it is cut off")
        else:
            commit(self, term)

    monkeypatch.setattr(Round, "commit", maybe)

    @virtually
    async def main() -> None:
        swarm, peers = begin(monkeypatch, KINDS[kind], 10, 4)
        try:
            for peer in peers:
                await peer.ended.wait()
            await assert_equal_states(swarm)
            strategies = check(swarm, peers)
            assert len(swarm.log.of("round.aborted")) > 4
            assert sum(strategy.is_whole for strategy in strategies) >= 2, "the others were in doubt what counted"
        finally:
            await swarm.close()

    main()


@pytest.mark.parametrize("kind", [soaked("blocking"), *TRIED[1:]])
def test_a_peer_that_dies_takes_its_own_window_along_and_no_other(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies when a round begins; one that was away comes back. The others' movements are whole."""

    @virtually
    async def main() -> None:
        swarm, peers = begin(monkeypatch, KINDS[kind], 12, 5)
        away, dead, *others = peers
        names = [peer.name for peer in peers]
        try:
            await swarm.run_until_step(3, limit_s=100)
            for other in names[1:]:
                swarm.internet.cut(away.name, other)
            begun = len(swarm.log.of("round.begun"))
            while len(swarm.log.of("round.begun")) == begun:
                await asyncio.sleep(0.01)
            swarm.internet.kill(dead.name)
            await swarm.run_until_step(7, peers=[peer.name for peer in others], limit_s=200)
            for other in names[2:]:
                swarm.internet.restore(away.name, other)
            for peer in (away, *others):
                await peer.ended.wait()
            await assert_equal_states(swarm, [peer.name for peer in (away, *others)])
            strategies = check(swarm, [away, *others])
            assert all(strategy.is_whole for strategy in strategies[1:])
        finally:
            await swarm.close()

    main()


@pytest.mark.parametrize("state", ["stays", "comes again", "is another"])
def test_a_result_that_is_adopted_counts_what_was_given_to_it(state: str) -> None:
    """Given, given up, moved on, given again; then the first result counts. Also if a state was fetched meanwhile."""
    for settings in KINDS.values():
        peer = LocalPeer(**settings)
        strategy = peer.strategy
        assert isinstance(strategy, Local)
        peer.micro_batch(2, 1)
        first, _ = peer.seal()
        assert first is not None
        first = first.clone()
        strategy.take_back()
        strategy.take_back()
        if state != "stays":
            both = strategy.shared_tensors(), strategy.local_tensors()
            shared, own = ({name: each.clone() for name, each in tensors.items()} for tensors in both)
            strategy.restored(shared, peer.replica.step, own if state == "comes again" else None)
        peer.micro_batch(3, 2)
        moved = peer.values()
        assert peer.seal()[1] == (3 if state == "is another" else 5)
        where = strategy._position()[: moved.numel()] - peer.anchor
        strategy.counted_earlier(1)
        mean = torch.full_like(first, 0.25)
        peer.absorb(mean)
        assert strategy.samples == 3
        left = peer.values() - peer.anchor
        for run, part in strategy._fragments.slices(0):
            counted = torch.zeros_like(first[part]) if state == "is another" else first[part]
            torch.testing.assert_close(left[run], where[run] + counted, rtol=0, atol=1e-6)


def test_who_drops_what_it_did_meanwhile_drops_its_samples_too_where_a_result_is_adopted() -> None:
    peer = LocalPeer(merge="overwrite")
    peer.micro_batch(2, 1)
    first, _ = peer.seal()
    assert first is not None
    first = first.clone()
    peer.strategy.take_back()
    peer.micro_batch(9, 2)
    peer.seal()
    peer.strategy.counted_earlier(1)
    peer.absorb(first)
    assert peer.strategy.samples == 0
    assert torch.equal(peer.values(), peer.anchor)


ROOTS = {(0, 2): 2, (0, 3): 0, (1, 2): 1, (1, 3): 1}
SITES = Division(tuple(PartShare(0.25, root, relays) for relays, root in ROOTS.items()), ((0, 1), (2, 3)))


@pytest.mark.parametrize("relay", ["fetches", "adopts", "gives up and adopts"])
def test_what_counted_is_kept_neither_by_the_strategy_nor_by_the_residual(
    relay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lossy round over sites: what each peer moved was applied, or is in its residual, or still in its model.

    A link is cut in the middle, so that a relay fetches means in which its own values are whole. Or all give the round
    up with the result in hand, one relay perhaps without it, move on, give again, and adopt that result.
    """
    commit, note_fate = Round.commit, Round.note_fate

    def give_up_the_first(self: Round, term: int) -> None:
        if relay == "fetches" or self.plan.adopts:
            commit(self, term)
        else:
            self.abort("it is cut off")

    def noted(self: Round, index: int, members: Collection[int]) -> None:
        chunk = self.chunks[index]
        samples[chunk.start : chunk.stop] = sum(weights[member] for member in members)
        was_told[chunk.start : chunk.stop] |= self.me == 2
        note_fate(self, index, members)

    monkeypatch.setattr(Round, "commit", give_up_the_first)
    monkeypatch.setattr(Round, "note_fate", noted)
    peers = [LocalPeer(model=wide_model(), overlap=True) for _ in range(4)]
    start, layout = peers[0].values().double(), VectorLayout((peers[0].replica.vector.numel,), "sign", "float32")
    samples, weights = torch.zeros(layout.total, dtype=torch.float64), [2, 3, 4, 5]
    was_told = torch.zeros(layout.total, dtype=torch.bool)
    residuals = [Residual(layout.total, keeps_uncounted=True) for _ in peers]
    for peer, weight in zip(peers, weights, strict=True):
        peer.micro_batch(weight, weight)

    @virtually
    async def main() -> None:
        world = World(4, up_bytes_per_s=2e4, down_bytes_per_s=2e4)
        await connect_all(world)
        plan = world.divide(layout, SITES, chunk_bytes=512)
        if relay == "gives up and adopts":
            later(0.3, lambda: world.parties[2].all_reduce.give_up(plan, "it is cut off before"))
        else:
            later(0.3, lambda: world.internet.cut(world.parties[1].network, world.parties[2].network))
        vectors = [peer.seal()[0] for peer in peers]
        results, outcomes = await world.reduce(plan, layout, vectors, weights, residuals=residuals)
        if relay != "fetches":
            holders = tuple(i for i, error in enumerate(outcomes) if getattr(error, "held_term", None) is not None)
            assert (2 in holders) is (relay == "adopts")
            for peer in peers:
                peer.strategy.take_back()
                peer.micro_batch(7, 7)
            plan = msgspec.structs.replace(
                plan, round_id="f" * 32, adopts=plan.round_id, holders=holders, view=plan.ids
            )
            vectors, later_weights = [peer.seal()[0] for peer in peers], [9, 10, 11, 12]
            _, outcomes = await world.reduce(plan, layout, vectors, later_weights, residuals=residuals, results=results)
        await world.close()
        kept, moved = torch.zeros(2, start.numel(), dtype=torch.float64)
        for peer, weight, residual, outcome in zip(peers, weights, residuals, outcomes, strict=True):
            assert isinstance(outcome, RoundOutcome)
            assert outcome.fate is ContributionFate.COUNTED
            moved += weight * (start - peer.values())
            if outcome.earlier:
                peer.strategy.counted_earlier(outcome.earlier)
            peer.absorb(results[0], outcome.fate)
            kept += weight * (peer.anchor - peer.values()) + residual.mass[: start.numel()]
        counted, mean = samples[: start.numel()], results[0][: start.numel()]
        known = counted == sum(weights)
        if relay == "gives up and adopts":  # it knows that the others make the rest of its own part without it
            own = slice(plan.parts[0].stop)
            assert not was_told[own].all()
            known[own] |= ~was_told[own]
        else:
            known[:] = True
        lost = (moved - counted * mean - kept)[known]
        assert float(lost.norm() / moved[known].norm()) < 1e-5

    main()


def wide_model() -> torch.nn.Sequential:
    """Several chunks for each part of a round."""
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 500), torch.nn.Linear(500, WIDTH))
