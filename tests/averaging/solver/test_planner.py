"""The planner: known setups, optimality against linear programmes, two levels, unreachable pairs, determinism."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minga.averaging.apportionment import NoAggregatorError, apportion
from minga.averaging.solver.division import Binding, Division, PartShare, PeerRates, SwarmRates, usable
from minga.averaging.solver.flat import equal_parts, flat_shares, predict
from minga.averaging.solver.planner import FEW_S, MIN_PART_BYTES, divide
from tests.worlds.lower_bound import shortest_round
from tests.worlds.planner_swarms import (
    FAST,
    GBIT,
    SETUPS,
    SLOW,
    VECTOR,
    auxiliary,
    client,
    parameter_server,
    peer,
    random_swarm,
    two_sites,
)
from tests.worlds.seeds import soaked


def seconds(rates: SwarmRates, vector_bytes: float = VECTOR) -> float:
    """The predicted round of the best division, small parts and all."""
    division = divide(rates, vector_bytes, min_part_bytes=0)
    check(division, rates)
    found = predict(division, rates, vector_bytes)
    assert division.predicted_s == pytest.approx(found.seconds)
    assert division.binding == found.binding
    return found.seconds


def check(division: Division, rates: SwarmRates) -> None:
    """What holds for every division."""
    count = len(rates.peers)
    assert math.fsum(part.share for part in division.parts) == pytest.approx(1.0, abs=1e-6)
    assert all(part.share > 0.0 for part in division.parts)
    assert len({(part.root, part.relays) for part in division.parts}) == len(division.parts)
    members = [member for site in division.sites for member in site]
    assert len(set(members)) == len(members)
    assert all(len(site) >= 2 for site in division.sites)
    for part in division.parts:
        assert 0 <= part.root < count
        assert rates.peers[part.root].aggregates or count == 1
        assert len(part.relays) == len(division.sites)
        for site, relay in zip(division.sites, part.relays, strict=True):
            assert relay in site
            assert rates.peers[relay].aggregates
            assert part.root not in site or relay == part.root


def roots(division: Division, count: int) -> list[float]:
    shares = [0.0] * count
    for part in division.parts:
        shares[part.root] += part.share
    return shares


@pytest.mark.parametrize(
    ("setup", "ideal"), [("A", 1.75), ("B", 9.375), ("C", 5.0), ("D", 5.5684), ("D, the auxiliary receives", 5.6140)]
)
def test_setups_of_the_literature(setup: str, ideal: float) -> None:
    rates = SETUPS[setup]
    assert seconds(rates) == pytest.approx(ideal, rel=1e-4)
    assert shortest_round(usable(rates), VECTOR) == pytest.approx(ideal, rel=1e-4)


def test_the_plan_beats_equal_parts_and_the_parameter_server() -> None:
    mixed = SETUPS["C"]
    equal = predict(equal_parts(mixed), mixed, VECTOR).seconds
    assert equal == pytest.approx(9.583, rel=1e-3)
    assert equal / seconds(mixed) == pytest.approx(1.917, rel=1e-3)
    assert predict(parameter_server(mixed, VECTOR), mixed, VECTOR).seconds == pytest.approx(23.0)
    helped = SETUPS["D"]
    equal = predict(equal_parts(helped), helped, VECTOR).seconds
    server = predict(parameter_server(helped, VECTOR), helped, VECTOR).seconds
    assert (equal, server) == (pytest.approx(9.375), pytest.approx(6.4))
    assert seconds(helped) < min(equal, server)


def test_symmetric_groups_get_the_closed_form() -> None:
    generator = random.Random(7)
    for _ in range(80):
        count = generator.randint(3, 19)
        able = [True, *(generator.random() > 0.3 for _ in range(count - 1))]
        bandwidths = [10 ** generator.uniform(5, 8) for _ in range(count)]
        # The closed form does not count what clients move.
        peers = [
            PeerRates(b if a else 1e12, b if a else 1e12, aggregates=a) for b, a in zip(bandwidths, able, strict=True)
        ]
        rates = SwarmRates(tuple(peers))
        serving = [b for b, a in zip(bandwidths, able, strict=True) if a]
        best = max((count - 2 + len(serving)) / math.fsum(serving), 1.0 / min(serving))
        found = flat_shares(usable(rates))
        parts = tuple(PartShare(share, root) for root, share in enumerate(found.tolist()) if share)
        assert predict(Division(parts), rates, 1e6).seconds == pytest.approx(best * 1e6, rel=1e-6)
        level = water_level(serving, count)
        filled = [
            max(0.0, (level * b - 1.0) / (count - 2)) if a else 0.0 for b, a in zip(bandwidths, able, strict=True)
        ]
        expected = [share / math.fsum(filled) for share in filled]
        assert found.tolist() == pytest.approx(expected, abs=1e-9)
        assert roots(divide(rates, 1e6, min_part_bytes=0), count) == pytest.approx(expected, abs=count * 1.1e-3)


def water_level(serving: list[float], count: int) -> float:
    """The level L with sum max(0, L b - 1) = count - 2, from the number of those that own a part."""
    ranked = sorted(serving, reverse=True)
    for owners in range(len(ranked), 1, -1):
        level = (count - 2 + owners) / math.fsum(ranked[:owners])
        if level * ranked[owners - 1] >= 1.0:
            return level
    return (count - 1) / ranked[0]


Bandwidths = tuple[float | None, ...]


def sizes(numel: int, bandwidths: Bandwidths, least: int = 0) -> tuple[int, ...]:
    """Elements that each peer roots, for symmetric bandwidths in any unit; 0 is a client, None unknown."""
    peers = [PeerRates(b * 1e6, b * 1e6) if b else PeerRates(None, None, aggregates=b is None) for b in bandwidths]
    division = divide(SwarmRates(tuple(peers)), float(numel), min_part_bytes=least)
    return apportion(numel, roots(division, len(peers)))


@pytest.mark.parametrize(
    ("numel", "bandwidths", "least", "expected"),
    [
        (60, (0.55, 0.44, 0.40), 10, (41, 19, 0)),
        (60, (0.32, 0.55, 0.44), 10, (0, 40, 20)),
        (2, (0.55, 0.20, 0.44), 10, (1, 0, 1)),
        (1, (0.55, 0.20, 0.44), 10, (1, 0, 0)),
        (100, (None, None), 0, (50, 50)),
        (100, (0, 0, 0, None, None), 0, (0, 0, 0, 50, 50)),
    ],
)
def test_known_sizes(numel: int, bandwidths: Bandwidths, least: int, expected: tuple[int, ...]) -> None:
    assert sizes(numel, bandwidths, least) == expected


def test_without_slow_paths_the_division_is_as_good_as_any_of_one_level() -> None:
    generator = random.Random(11)
    for _ in range(25):
        rates = random_swarm(generator, generator.randint(2, 12))
        bound = shortest_round(usable(rates), VECTOR)
        assert bound * (1 - 1e-6) <= seconds(rates) <= bound * 1.01


def test_with_slow_paths_no_flat_division_beats_the_bound_and_ours_is_near() -> None:
    generator, ratios = random.Random(12), []
    for _ in range(16):
        rates = random_swarm(generator, generator.randint(3, 9), paths=0.3)
        division = divide(rates, VECTOR, min_part_bytes=0)
        check(division, rates)
        bound = shortest_round(usable(rates), VECTOR)
        assert division.sites or division.predicted_s >= bound * (1 - 1e-6)
        assert division.predicted_s is not None
        ratios.append(division.predicted_s / bound)
    assert max(ratios) < 2.0
    assert sorted(ratios)[len(ratios) // 2] < 1.02


# ---- two levels


@pytest.mark.parametrize(("ends", "flat", "two_level"), [(100.0, 5.0, 1.25), (1.0, 5.0, 1.75)])
def test_two_sites(ends: float, flat: float, two_level: float) -> None:
    rates = two_sites(ends=ends)
    assert shortest_round(usable(rates), VECTOR) == pytest.approx(flat, rel=1e-4)
    assert predict(equal_parts(rates), rates, VECTOR).seconds == pytest.approx(flat)
    division = divide(rates, VECTOR)
    check(division, rates)
    assert division.sites == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert division.predicted_s == pytest.approx(two_level, rel=1e-3)
    assert {frozenset(part.relays) for part in division.parts} == {
        frozenset((i, j)) for i in range(4) for j in range(4, 8)
    }


def test_three_sites_and_somebody_outside() -> None:
    place = [0, 0, 0, 1, 1, 2, 2, 3, 4]
    numbers = range(9)
    pairs = {(i, j): (1.0 if place[i] == place[j] else 0.03) * GBIT for i in numbers for j in numbers if i != j}
    rates = SwarmRates((*(peer(2.0),) * 7, client(0.5), auxiliary(0.5)), pairs)
    division = divide(rates, VECTOR)
    check(division, rates)
    assert division.sites == ((0, 1, 2), (3, 4), (5, 6))
    assert division.predicted_s is not None
    flat = predict(equal_parts(rates), rates, VECTOR).seconds
    assert division.predicted_s < flat / 1.3


def test_two_levels_must_win_by_a_margin() -> None:
    # Paths across are hardly slower than inside: the same sites are there, but one level does as well.
    assert divide(two_sites(inside=1.0, across=0.45, ends=1.0), VECTOR).sites == ()


def test_clients_make_no_site_and_relay_nothing() -> None:
    rates = two_sites()
    peers = tuple(replace(one, aggregates=index < 4) for index, one in enumerate(rates.peers))
    division = divide(SwarmRates(peers, rates.pairs), VECTOR)
    check(division, SwarmRates(peers, rates.pairs))
    assert all(max(site) < 4 for site in division.sites)


# ---- who cannot do what


def test_peers_apart_are_no_roots_for_each_other() -> None:
    rates = SwarmRates((peer(1.0),) * 4, {(0, 1): 0.0})
    division = divide(rates, VECTOR)
    assert roots(division, 4) == pytest.approx([0.0, 0.0, 0.5, 0.5])
    # Only 1 misses 0's results, so a 0 that never sends may be reached by everybody but not reach all.
    alone = SwarmRates((replace(peer(1.0), sends=False), *(peer(1.0),) * 3), {(0, 1): 0.0})
    assert roots(divide(alone, VECTOR), 4)[0] == 0.0


def test_a_group_without_a_way_between_some_still_gets_a_plan() -> None:
    everywhere = {(i, j): 0.0 for i in range(4) for j in range(4) if i != j}
    division = divide(SwarmRates((peer(1.0),) * 4, everywhere), VECTOR)
    assert division.predicted_s == math.inf
    assert division.binding is not None
    assert division.binding.kind == "path"
    assert roots(division, 4) == [0.25] * 4
    assert shortest_round(usable(SwarmRates((peer(1.0),) * 4, everywhere)), VECTOR) == math.inf
    large = divide(SwarmRates((peer(1.0),) * 200, {(i, (i + 1) % 200): 0.0 for i in range(200)}), VECTOR)
    assert math.fsum(roots(large, 200)) == pytest.approx(1.0, abs=1e-6)


def test_small_groups_and_nobody() -> None:
    assert divide(SwarmRates((client(1.0),)), VECTOR) == Division((PartShare(1.0, 0),), predicted_s=0.0)
    assert roots(divide(SwarmRates((peer(1.0), peer(100.0))), VECTOR), 2) == [0.5, 0.5]
    assert roots(divide(SwarmRates((client(1.0), peer(1.0))), VECTOR), 2) == [0.0, 1.0]
    assert seconds(SwarmRates((peer(1.0), peer(100.0)))) == pytest.approx(1.0)
    with pytest.raises(NoAggregatorError, match="no client"):
        divide(SwarmRates((client(1.0), client(1.0))), VECTOR)
    with pytest.raises(ValueError, match="at least one peer"):
        divide(SwarmRates(()), VECTOR)
    for vector, least in ((-1.0, 0.0), (math.nan, 0.0), (1.0, -1.0), (1.0, math.nan)):
        with pytest.raises(ValueError, match="negative"):
            divide(SwarmRates((peer(1.0),) * 2), vector, min_part_bytes=least)


def test_small_parts_are_dropped() -> None:
    rates = SwarmRates((peer(1.0), peer(1.0), peer(0.6756)))
    assert 0.0 < roots(divide(rates, VECTOR, min_part_bytes=0), 3)[2] < 0.02
    division = divide(rates, VECTOR, min_part_bytes=0.02 * VECTOR)
    assert roots(division, 3) == pytest.approx([0.5, 0.5, 0.0])
    # Nobody's part is large enough: three are kept.
    assert roots(divide(rates, 100.0, min_part_bytes=1000), 3)[2] > 0.0
    assert len(divide(rates, 0.0).parts) == 3


@pytest.mark.parametrize("count", [4, 48, 150, *map(soaked, (8, 16, 400))])
def test_a_small_vector_goes_to_few(count: int) -> None:
    """Messages in proportion to the members: three roots, or as many as have 16 KiB each."""
    quick = SwarmRates((peer(1.0),) * count)
    unknown = SwarmRates((PeerRates(None, None),) * count)
    for rates in (quick, unknown):
        assert roots(divide(rates, 4e3), count).count(0.0) == count - 3
        few = divide(rates, 5.5 * MIN_PART_BYTES)
        assert len(few.parts) == len({part.root for part in few.parts}) == min(count, 5) if count <= 64 else 3
        check(few, rates)


def test_few_parts_are_more_where_they_would_take_long() -> None:
    slow = SwarmRates((PeerRates(1e5, 1e6),) * 16)
    everybody = predict(equal_parts(slow), slow, 1e4).seconds
    few = divide(slow, 1e4)
    assert len(few.parts) == 12
    assert few.predicted_s is not None
    assert few.predicted_s <= everybody + FEW_S
    three = Division(tuple(PartShare(1 / 3, root) for root in range(3)))
    assert predict(three, slow, 1e4).seconds > everybody + FEW_S


def test_the_roots_of_a_small_vector_stay_while_rates_move_a_little() -> None:
    generator, found = random.Random(3), set()
    for _ in range(50):
        peers = [peer(generator.uniform(0.8, 1.2)) for _ in range(5)] + [client(9.0)] + [peer(0.05)] * 2
        found.add(tuple(part.root for part in divide(SwarmRates(tuple(peers[::-1])), 4e3).parts))
    assert found == {(3, 4, 5)}


def test_of_few_parts_between_sites_no_root_has_two_before_each_has_one() -> None:
    rates = two_sites(across=1e-5)
    division = divide(rates, 4e3)
    check(division, rates)
    assert len(division.sites) == 2
    assert len(division.parts) == 12
    assert {part.root for part in division.parts} == set(range(8))


# ---- determinism


def test_equal_input_gives_an_equal_division() -> None:
    generator = random.Random(17)
    for paths in (0.0, 0.4):
        rates = random_swarm(generator, 9, paths=paths)
        assert divide(rates, VECTOR) == divide(SwarmRates(rates.peers, dict(rates.pairs)), VECTOR)


def test_the_order_of_peers_does_not_matter() -> None:
    generator = random.Random(18)
    for trial in range(8):
        rates = random_swarm(generator, 7, paths=0.4 if trial % 2 else 0.0)
        order = list(range(7))
        generator.shuffle(order)
        peers = [rates.peers[0]] * 7
        for old, new in enumerate(order):
            peers[new] = rates.peers[old]
        moved = SwarmRates(tuple(peers), {(order[i], order[j]): rate for (i, j), rate in rates.pairs.items()})
        before, after = divide(rates, VECTOR), divide(moved, VECTOR)
        assert after.predicted_s == pytest.approx(before.predicted_s)
        renamed = roots(after, 7)
        assert [renamed[new] for new in order] == pytest.approx(roots(before, 7), abs=1e-6)
        assert sorted(after.sites) == sorted(tuple(sorted(order[i] for i in site)) for site in before.sites)


# ---- bad measurements

ABSURD = st.one_of(
    st.none(), st.sampled_from((0.0, -1.0, math.nan, math.inf, -math.inf, 1e30, 1e-30, 5e-324)), st.floats(1e3, 1e9)
)


@given(st.data())
def test_whatever_was_measured_there_is_a_plan(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 7))
    flags = st.booleans()
    peers = [
        PeerRates(data.draw(ABSURD), data.draw(ABSURD), data.draw(ABSURD) or 0.0, data.draw(flags), data.draw(flags))
        for _ in range(count)
    ]
    places = st.integers(-1, count)
    pairs = data.draw(st.dictionaries(st.tuples(places, places), ABSURD.filter(lambda rate: rate is not None)))
    rates = SwarmRates(tuple(peers), pairs)
    division = divide(rates, 1e6)
    check(division, rates)
    assert not math.isnan(division.predicted_s or 0.0)


def test_absurd_rates_are_named() -> None:
    peers = (PeerRates(0.0, -1.0), PeerRates(math.nan, 1e30), PeerRates(1e6, 1e6, math.inf), PeerRates(1e-9, 1e6))
    found = usable(SwarmRates(peers, {(0, 1): math.nan, (1, 2): -5.0, (2, 3): 1e9, (9, 0): 1.0, (1, 1): 1.0}))
    named = {(remark.peer, remark.other): remark.text for remark in found.remarks}
    assert set(named) == {(0, None), (1, None), (2, None), (3, None), (0, 1), (1, 2), (2, 3)}
    assert "no rate" in named[0, None]
    assert "faster than its ends" in named[2, 3]
    assert found.upload.tolist() == [1e6] * 4
    assert found.download.tolist() == [1e6] * 4
    assert not usable(SwarmRates(SLOW)).remarks


def test_unknown_rates_are_the_usual_ones() -> None:
    unknown = PeerRates(None, None)
    division = divide(SwarmRates((unknown,) * 5), VECTOR)
    assert roots(division, 5) == pytest.approx([0.2] * 5)
    assert (division.predicted_s, division.binding) == (None, None)
    found = usable(SwarmRates((unknown, peer(1.0, 5.0), peer(3.0, 7.0), peer(2.0, 6.0))))
    assert (found.upload[0], found.download[0]) == (2.0 * GBIT, 6.0 * GBIT)
    one_sided = usable(SwarmRates((PeerRates(None, 8.0), PeerRates(None, 10.0))))
    assert one_sided.upload.tolist() == [9.0, 9.0]


def test_a_claim_without_bound_is_none() -> None:
    liar = PeerRates(1e30, 1e30)
    division = divide(SwarmRates((*FAST, liar)), VECTOR)
    assert roots(division, 9)[8] == pytest.approx(1 / 9, abs=1e-3)


# ---- prediction


def test_prediction_counts_every_byte() -> None:
    rates = SETUPS["D"]
    division = divide(rates, VECTOR)
    found = predict(division, rates, VECTOR)
    assert math.fsum(found.upload_bytes) == pytest.approx(math.fsum(found.download_bytes))
    server = predict(parameter_server(rates, VECTOR), rates, VECTOR)
    assert server.upload_bytes[16] == pytest.approx(16 * VECTOR)
    assert server.binding == Binding("upload", 16)
    assert predict(divide(SwarmRates(SLOW[:1]), VECTOR), SwarmRates(SLOW[:1]), VECTOR).binding is None


def test_prediction_of_two_levels_by_hand() -> None:
    # 0, 1 | 2, 3: the part's root is 0, the relay of the other site 3; 4 is outside.
    rates = SwarmRates((peer(1.0),) * 5, {(3, 0): 0.1 * GBIT})
    division = Division((PartShare(1.0, 0, (0, 3)),), ((0, 1), (2, 3)))
    found = predict(division, rates, VECTOR)
    assert [round(sent / VECTOR, 6) for sent in found.upload_bytes] == [3, 1, 1, 2, 1]
    assert [round(got / VECTOR, 6) for got in found.download_bytes] == [3, 1, 1, 2, 1]
    assert found.seconds == pytest.approx(10.0)
    assert found.binding == Binding("path", 3, 0)


def test_a_trainer_that_would_reduce_everything_leaves_a_part_to_who_can_attest_its_samples() -> None:
    host = auxiliary(0.05, receives=True)
    beside_a_host = SwarmRates((peer(1.0), host))
    division = divide(beside_a_host, VECTOR)
    assert {part.root for part in division.parts} == {0, 1}
    assert division.predicted_s == pytest.approx(predict(Division((PartShare(1.0, 0),)), beside_a_host, VECTOR).seconds)
    one_fast = SwarmRates((peer(9.0), client(0.01), peer(0.01), host))
    assert {part.root for part in divide(one_fast, VECTOR).parts} == {0, 3}, "who has no samples of its own comes first"
    assert {part.root for part in divide(SwarmRates((peer(1.0), client(0.1), client(0.1))), VECTOR).parts} == {0}
