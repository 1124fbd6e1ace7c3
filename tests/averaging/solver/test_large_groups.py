"""Groups above 64 members: sites by count, few streams for each, the same exact mean; and the check of their plans."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.links import Links
from minga.averaging.planning.signed_plan import unfair_parts
from minga.averaging.solver.division import Division, PeerRates, SwarmRates, usable
from minga.averaging.solver.flat import flat_shares, predict
from minga.averaging.solver.planner import KEPT_LOSS, divide
from minga.averaging.solver.two_level import LARGE
from minga.network.bandwidth.access_link import AccessRates
from tests.worlds.reduce_world import World
from tests.worlds.swarm_tools import virtually

VECTOR_BYTES = 12e6
MBIT = 1e6 / 8


def homes(count: int, clients: float = 0.2) -> SwarmRates:
    generator = random.Random(f"homes {count}")
    peers = []
    for index in range(count):
        upload = min(max(generator.lognormvariate(3.4, 0.6), 10.0), 200.0) * MBIT
        able = index == 0 or generator.random() >= clients
        peers.append(PeerRates(upload, 5 * upload, 10.0, aggregates=able))
    return SwarmRates(tuple(peers))


@pytest.mark.parametrize("count", [LARGE + 1, 150, 1000])
def test_a_large_group_goes_over_sites_in_hardly_more_time_than_in_one_level(count: int) -> None:
    rates = homes(count)
    division = divide(rates, VECTOR_BYTES)
    assert sorted(peer for site in division.sites for peer in site) == list(range(count))
    assert max(map(len, division.sites)) - min(map(len, division.sites)) <= 1
    assert len(division.parts) <= 2 * count**0.5
    assert sum(part.share for part in division.parts) == pytest.approx(1.0)
    for part in division.parts:
        assert part.root in part.relays
        for site, relay in zip(division.sites, part.relays, strict=True):
            assert relay in site
            assert rates.peers[relay].aggregates
    for place in range(len(division.sites)):
        relays = [part.relays[place] for part in division.parts]
        assert len(set(relays)) == len(relays), "nobody in a site stands in two parts"
    flat = Division(
        tuple(
            type(division.parts[0])(float(share), root)
            for root, share in enumerate(flat_shares(usable(rates)))
            if share > 0.0
        )
    )
    assert (division.predicted_s or 0.0) < 1.1 * predict(flat, rates, VECTOR_BYTES).seconds


def test_groups_of_usual_size_and_those_with_too_few_aggregators_stay_flat() -> None:
    assert not divide(homes(LARGE), VECTOR_BYTES).sites
    few = SwarmRates(tuple(PeerRates(1e6, 1e6, aggregates=index < 3) for index in range(80)))
    division = divide(few, VECTOR_BYTES)
    assert not division.sites
    assert {part.root for part in division.parts} <= {0, 1, 2}


def test_former_ways_are_kept_while_they_cost_little_and_their_aggregators_are_there() -> None:
    rates = homes(150)
    first = divide(rates, VECTOR_BYTES)
    ways = {(part.root, part.relays) for part in first.parts}
    generator = random.Random("moved")
    moved = tuple(replace(p, upload=(p.upload or 0.0) * generator.uniform(0.8, 1.25)) for p in rates.peers)
    again = divide(SwarmRates(moved), VECTOR_BYTES, first)
    best = divide(SwarmRates(moved), VECTOR_BYTES)
    assert {(part.root, part.relays) for part in best.parts} != ways
    assert (again.predicted_s or 0.0) <= (1.0 + KEPT_LOSS) * (best.predicted_s or 0.0)
    slight = tuple(replace(p, upload=(p.upload or 0.0) * generator.uniform(0.98, 1.02)) for p in rates.peers)
    kept = divide(SwarmRates(slight), VECTOR_BYTES, first)
    assert {(part.root, part.relays) for part in kept.parts} <= ways
    assert kept.sites == first.sites
    root = first.parts[0].root
    slower = tuple(replace(p, upload=10 * MBIT) if place == root else p for place, p in enumerate(rates.peers))
    assert root not in {part.root for part in divide(SwarmRates(slower), VECTOR_BYTES, first).parts}
    client = tuple(replace(p, aggregates=False) if place == root else p for place, p in enumerate(rates.peers))
    without = divide(SwarmRates(client), VECTOR_BYTES, first)
    assert root not in {peer for part in without.parts for peer in (part.root, *part.relays)}
    quarters = tuple(replace(part, share=part.share / 4) for part in first.parts for _ in range(4))
    assert divide(rates, VECTOR_BYTES, replace(first, parts=quarters)) == first, "more parts than there should be"


@virtually
async def test_a_member_counts_what_a_plan_of_two_levels_asks_of_it() -> None:
    count, layout = 66, VectorLayout((1_000_000,), "float32")
    world = World(count)
    division = divide(SwarmRates((PeerRates(1e6, 1e6),) * count), 4e6)
    plan = world.divide(layout, division)
    root = division.parts[0].root
    links = {party.peer_id: Links(1_000_000, 1_000_000) for party in world.parties}
    plain = next(peer for peer in range(count) if all(peer not in part.relays for part in division.parts))
    assert unfair_parts(plan, links, AccessRates(1e6, 1e6), root, 4e6) is None
    slow = unfair_parts(plan, links, AccessRates(1e4, 1e6), root, 4e6)
    assert slow is not None
    assert "busy for" in slow
    foreseen = predict(division, SwarmRates((PeerRates(1e6, 1e6),) * count), 4e6)
    assert f"{foreseen.upload_bytes[root] / 1e4:.0f} s" in slow
    assert unfair_parts(plan, links, AccessRates(1e5, 1e6), plain, 4e6) is None
