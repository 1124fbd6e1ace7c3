"""Rounds of random divisions in which random things go wrong: whoever finishes has the same numbers as the others."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch
from test_two_level import RATE, connect_all, vectors_of

from minga.averaging.allreduce.round import RoundOutcome
from minga.averaging.allreduce.service import RoundAbortedError
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.solver.division import Division, PartShare
from tests.worlds.reduce_world import World
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import later, virtually

pytestmark = pytest.mark.promise("any-peer-may-die")

FAULTS = ("kill", "cut", "cut one way", "stall", "slow link")
LONGEST_S = 40.0
"""No single fault may cost more: a round takes a second, with a slow link up to twenty, and repairs come on top."""


def any_division(rng: random.Random, count: int) -> Division:
    """Parts of any size with any roots, over zero to three sites of two to four members."""
    left = rng.sample(range(count), count)
    sites = []
    for _ in range(rng.choice([0, 0, 1, 2, 2, 3])):
        if len(left) >= 2:
            size = rng.randint(2, min(4, len(left)))
            sites.append(tuple(sorted(left[:size])))
            left = left[size:]
    parts = []
    for _ in range(rng.randint(1, 2 * count)):
        root = rng.randrange(count)
        relays = tuple(root if root in site else rng.choice(site) for site in sites)
        parts.append(PartShare(rng.uniform(0.1, 1), root, relays))
    total = sum(part.share for part in parts)
    return Division(tuple(PartShare(p.share / total, p.root, p.relays) for p in parts), tuple(sites))


class Trial:
    """One round; `harmed` are the members at whom something went wrong, `dead` those of them that were killed."""

    def __init__(self, seed: int, faults: int) -> None:
        self.rng = random.Random(seed)
        self.count = self.rng.randint(4, 8)
        self.world = World(self.count, seed=seed, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
        self.faults, self.dead, self.harmed = faults, set[int](), set[int]()

    def break_something(self) -> None:
        internet, rng = self.world.internet, self.rng
        kind, when_s = rng.choice(FAULTS), rng.uniform(0.0, 1.5)
        a, b = rng.sample(range(self.count), 2)
        one, other = self.world.parties[a].network, self.world.parties[b].network
        self.harmed.add(a)
        if kind == "kill":
            self.dead.add(a)
            later(when_s, lambda: internet.kill(one))
        elif kind == "stall":
            later(when_s, lambda: internet.stall(one))
            later(when_s + rng.uniform(0.2, 8.0), lambda: internet.resume(one))
        elif kind == "slow link":
            later(when_s, lambda: internet.set_rate(one, RATE / 20, RATE / 20))
        else:
            self.harmed.add(b)
            later(when_s, lambda: internet.cut(one, other, one_way=kind == "cut one way"))

    async def run(self) -> tuple[list[torch.Tensor], list[RoundOutcome | BaseException]]:
        await connect_all(self.world)
        layout = VectorLayout((60_000,), self.rng.choice(["float32", "float16", "int8"]))
        plan = self.world.divide(layout, any_division(self.rng, self.count))
        for _ in range(self.faults):
            self.break_something()
        vectors = vectors_of(self.count, layout)
        async with asyncio.timeout(400.0):
            return await self.world.reduce(plan, layout, list(vectors), [1] * self.count)


TRIALS = [(s, 1) if s < 8 else soaked(s, 1) for s in range(60)]
TRIALS += [(s, 2) if s < 104 else soaked(s, 2) for s in range(100, 130)]


@pytest.mark.parametrize(("seed", "faults"), TRIALS)
def test_whoever_finishes_has_the_same_numbers(seed: int, faults: int) -> None:
    @virtually
    async def main() -> None:
        trial = Trial(seed, faults)
        results, outcomes = await trial.run()
        kept = [i for i in range(trial.count) if i not in trial.dead]
        done = {i: o for i in kept if isinstance(o := outcomes[i], RoundOutcome)}
        assert all(isinstance(outcomes[i], (RoundOutcome, RoundAbortedError)) for i in kept), outcomes
        assert all(torch.equal(results[i], results[min(done)]) for i in done)
        if faults == 1:
            assert set(kept) - trial.harmed <= done.keys(), "a single fault costs nobody else the round"
            assert all(outcome.seconds < LONGEST_S for i, outcome in done.items() if i not in trial.harmed)
        assert all(trial.world.parties[i].offences() == [] for i in kept)
        await trial.world.close()

    main()
