"""The ways of a repair where the plan has sites: through those who live, over connections that are there."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from minga.averaging.allreduce.messages import Assignment
from minga.averaging.allreduce.round import Round, RoundOutcome
from minga.averaging.allreduce.routes import FetchWays, RepairWay, Routes, is_way, repair_ways
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.messages import GroupMember, Plan
from minga.averaging.planning.signed_plan import PlanNeeds, make_plan
from minga.averaging.solver.division import PeerRates, SwarmRates
from minga.averaging.solver.planner import divide
from minga.network.interface import Address, PeerId
from tests.averaging.allreduce.test_two_level import LAYOUT, RATE, connect_all, two_sites, vectors_of
from tests.worlds.reduce_world import World
from tests.worlds.seeds import seeds, soaked
from tests.worlds.swarm_tools import later, virtually

SEEDS = seeds(3, of=200)


def large_plan(seed: int) -> Plan:
    """Of 65 to 150 members at home, some of whom cannot aggregate."""
    generator = random.Random(seed)
    count = generator.randrange(65, 151)
    able = [index == 0 or generator.random() < 0.8 for index in range(count)]
    rates = SwarmRates(tuple(PeerRates(generator.uniform(1e6, 1e7), 1e7, aggregates=is_able) for is_able in able))
    members = tuple(GroupMember(Address(PeerId(f"{i:064x}")), is_able) for i, is_able in enumerate(able))
    return make_plan("a round", PlanNeeds(0, 100_000, 400_000), members, divide(rates, 4e5))


def small_plan(seed: int) -> Plan:
    """Of two sites and members beside them, which may be roots."""
    division = two_sites([0, 1, 2], [3, 4, 5], alone=[6] if seed % 2 else None)
    members = tuple(GroupMember(Address(PeerId(f"{i:064x}")), True) for i in range(8))
    return make_plan("a round", PlanNeeds(0, 100_000, 400_000), members, division)


@pytest.mark.parametrize("make", [large_plan, small_plan])
@pytest.mark.parametrize("seed", SEEDS)
def test_every_way_leads_all_who_live_to_a_root_that_lives(seed: int, make: Callable[[int], Plan]) -> None:
    plan, generator = make(seed), random.Random(f"deaths {seed}")
    count, routes = len(plan.members), Routes(plan.sites)
    for share in (0.02, 0.2, 0.6, 0.95):
        dead = {member for member in range(count) if generator.random() < share}
        if generator.random() < 0.5:  # a whole site
            dead |= set(generator.choice(plan.sites))
        workers = [i for i in range(count) if i not in dead and plan.members[i].aggregates]
        ways = repair_ways(plan, workers)
        assert bool(ways) == bool(workers)
        assert len(ways) == len(set(ways))
        for way in ways:
            assert is_way(plan, way)
            assert {way.root, *way.relays} <= set(workers)
            assignment = Assignment((1, 0), way.root, (0,), way.relays)
            for member in set(range(count)) - dead:
                hops = [member]
                while (parent := routes.parent(assignment, hops[-1])) is not None:
                    hops.append(parent)
                assert hops[-1] == way.root
                assert len(hops) <= 3


@pytest.mark.parametrize("seed", SEEDS)
def test_the_loss_of_a_relay_makes_the_others_connect_with_hardly_anybody(seed: int) -> None:
    plan, routes = large_plan(seed), Routes(large_plan(seed).sites)
    assert plan.sites

    def pairs(way: RepairWay) -> set[tuple[int, int]]:
        assignment = Assignment((0, 0), way.root, (0,), way.relays)
        parents = ((member, routes.parent(assignment, member)) for member in range(len(plan.members)))
        return {(member, parent) for member, parent in parents if parent is not None}

    connected = set[tuple[int, int]]().union(*(pairs(RepairWay(part.root, part.relays)) for part in plan.parts))
    lost = random.Random(seed).choice([relay for relay in plan.parts[0].relays if relay != plan.parts[0].root])
    ways = repair_ways(plan, [i for i, m in enumerate(plan.members) if m.aggregates and i != lost])
    assert len(ways) == len(plan.parts)
    assert len({pair for way in ways for pair in pairs(way) if lost not in pair} - connected) <= 1


@pytest.mark.parametrize("make", [large_plan, small_plan])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_one_holds_goes_over_one_member_of_each_site(seed: int, make: Callable[[int], Plan]) -> None:
    """Hundreds would ask one line for it. What was said before more members died holds: nobody waits in a circle."""
    plan, generator = make(seed), random.Random(f"holders {seed}")
    members = range(len(plan.members))
    able = {index for index in members if plan.members[index].aggregates}
    holder, chunk = generator.choice(sorted(able)), generator.randrange(100)
    asked = dict[int, int]()
    while len(able) > 1:
        ways = {member: FetchWays(plan, member, able).source(holder, chunk) for member in members}
        loners = set(members) - {member for site in plan.sites for member in site}
        askers = [member for member, source in ways.items() if source == holder != member]
        dark = [site for site in plan.sites if able.isdisjoint(site)]
        mates = next((len(site) for site in plan.sites if holder in site), 0)
        assert len(askers) <= len(plan.sites) + len(loners) + mates + sum(map(len, dark))
        for member, source in ways.items():
            assert source in able or source in (holder, member)
            if asked.get(member) not in able:  # it goes on with whom it asked as long as that one lives
                asked[member] = source
        for member in members:
            hops = [member]
            while hops[-1] != holder:
                hops.append(asked[hops[-1]])
                assert len(hops) <= 3
        able -= set(generator.sample(sorted(able - {holder}), max(1, len(able) // 8)))


WRONG = {
    "a relay too few": RepairWay(0, (0,)),
    "a relay of another site": RepairWay(6, (3, 0)),
    "beside the root": RepairWay(0, (1, 3)),
    "a client": RepairWay(0, (0, 5)),
}


@pytest.mark.parametrize("case", WRONG)
def test_ways_that_nobody_can_go_are_refused(case: str) -> None:
    members = tuple(GroupMember(Address(PeerId(f"{i:064x}")), i != 5) for i in range(7))
    plan = make_plan("a round", PlanNeeds(0, 100_000, 400_000), members, two_sites([0, 1, 2], [3, 4], alone=[6]))
    assert is_way(plan, RepairWay(0, (0, 3)))
    assert is_way(plan, RepairWay(0, (0, 0)))  # nobody is left there who could aggregate
    assert is_way(plan, RepairWay(6, (1, 4)))
    assert is_way(plan, RepairWay(0))
    assert not is_way(plan, WRONG[case])


def victims_of(plan: Plan, case: str) -> set[int]:
    """Who dies."""
    part = next(part for part in plan.parts if part.root)
    relay = next(relay for relay in part.relays if relay not in (0, part.root))
    site = next(site for site in plan.sites if 0 not in site)
    return {
        "relay": {relay},
        "root": {part.root},
        "leader": {0},
        "site": set(site),
        "roots": {part.root for part in plan.parts} - {0},
        "a relay of each part": {next(r for r in part.relays if r not in (0, part.root)) for part in plan.parts},
    }[case]


FEWER = [soaked("relay"), soaked("root"), soaked("site"), soaked("a relay of each part"), soaked("roots")]
"""In `make test` the leader dies; `test_fetch_faults` loses a root and a relay of fewer, and `test_two_level` each
member of smaller groups.
"""


@pytest.mark.parametrize("case", [*FEWER, "leader"])
def test_a_round_of_seventy_is_mended_over_the_connections_that_it_has(case: str) -> None:
    @virtually
    async def main() -> None:
        count, layout = 70, VectorLayout((120_000,), "float32")
        world = World(count, up_bytes_per_s=2e6, down_bytes_per_s=1e7)
        await world.start()
        vectors = [torch.full((layout.total,), float(2 ** (index % 20))) for index in range(count)]
        division = divide(SwarmRates((PeerRates(2e6, 1e7),) * count), 4.0 * layout.total)
        plan = world.divide(layout, division)
        victims = victims_of(plan, case)
        for party in world.parties[1:]:  # the leader told them the plan
            await party.network.process.run(party.node.connection(world.parties[0].peer_id))
        before = list[int]()

        def kill() -> None:
            before.extend(len(party.node.connected()) for party in world.parties)
            for victim in victims:
                world.internet.kill(world.parties[victim].network)

        later(0.25, kill)
        results, outcomes = await world.reduce(plan, layout, list(vectors), [1] * count)
        kept = [index for index in range(count) if index not in victims]
        fresh = [len(world.parties[index].node.connected()) - before[index] for index in kept]
        await world.close()
        assert all(isinstance(outcomes[index], RoundOutcome) for index in kept), outcomes
        assert all(torch.equal(results[index], results[kept[0]]) for index in kept)
        living = sum(float(2 ** (index % 20)) for index in kept) / len(kept)
        assert torch.isclose(results[kept[0]], torch.tensor(living), rtol=1e-6).any(), "nothing was mended"
        if case != "leader":  # whose followers also look for the next one
            assert sum(max(0, more) for more in fresh) <= 2 * len(plan.parts) * len(plan.sites)
        assert not any(world.parties[index].offences() for index in kept)

    main()


def test_a_relay_that_the_root_does_not_hear_is_reported_and_its_site_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A root that gave a member up as a sender must not go on without the site for which that stands in a repair."""
    rounds = list[Round]()
    original = Round.__init__

    def note(round: Round, *arguments: object, **options: object) -> None:
        original(round, *arguments, **options)  # type: ignore[arg-type]
        rounds.append(round)

    monkeypatch.setattr(Round, "__init__", note)

    @virtually
    async def main() -> None:
        world = World(6, up_bytes_per_s=RATE, down_bytes_per_s=RATE)
        await connect_all(world)
        vectors = vectors_of(6)
        plan = world.divide(LAYOUT, two_sites([0, 1, 2], [3, 4, 5]))

        def kill() -> None:
            for round in rounds:
                if round.me < 3:
                    round.unheard[4] = "given up as a sender"
            world.internet.kill(world.parties[5].network)

        later(0.1, kill)
        results, outcomes = await world.reduce(plan, LAYOUT, list(vectors), [1] * 6)
        await world.close()
        assert all(isinstance(outcomes[i], RoundOutcome) for i in range(5)), outcomes
        assert all(torch.equal(results[i], results[0]) for i in range(5))
        fits = torch.isclose(results[0], torch.stack(vectors).mean(0), atol=1e-5)
        fits |= torch.isclose(results[0], torch.stack(vectors[:5]).mean(0), atol=1e-5)
        assert fits.all(), "a site is missing from the mean"

    main()


def test_without_sites_every_worker_is_a_root() -> None:
    members = tuple(GroupMember(Address(PeerId(f"{i:064x}")), True) for i in range(4))
    division = divide(SwarmRates((PeerRates(1e6, 1e6),) * 4), 4000.0)
    plan = make_plan("a round", PlanNeeds(0, 1000, 4000), members, division)
    assert repair_ways(plan, [1, 3]) == [RepairWay(1), RepairWay(3)]
