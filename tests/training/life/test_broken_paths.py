"""Peers that live and cannot reach each other: a run leads, and averages, over those that all can reach."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import combinations, product

import pytest

from minga.averaging.links import BrokenPaths, Links, link_key
from minga.averaging.planning.believed_rates import RateClaim, swarm_rates
from minga.network.interface import PeerId
from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.simulated_peer import TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from tests.worlds.swarm_tools import make_spec, pull, rounds, vector_replica, virtually

A, B, C, D, E = (PeerId(each * 64) for each in "abcde")
LEARNT_S, LOOKED_AT_S = 80.0, 20.0


def told(*pairs: tuple[PeerId, PeerId], all_living: str = "abcde") -> dict[PeerId, Links]:
    """The records of peers of which the first of each pair says that it cannot reach the second."""
    living = [PeerId(each * 64) for each in all_living]
    return {peer: Links(apart=tuple(link_key(other) for one, other in pairs if one == peer)) for peer in living}


def both_ways(*pairs: tuple[PeerId, PeerId]) -> list[tuple[PeerId, PeerId]]:
    return [*pairs, *((other, one) for one, other in pairs)]


def test_a_path_is_broken_if_both_ends_say_so() -> None:
    assert BrokenPaths.of(told((A, B), (A, C), (C, A), (B, B)), 5) == ({A: {C}, C: {A}}, frozenset())
    order = [A, B, C]
    rates = swarm_rates(order, [RateClaim(1e6, 1e6)] * 3, told((A, B), (A, C), (C, A)))
    assert rates.pairs == {(0, 2): 0.0, (2, 0): 0.0}


@pytest.mark.parametrize(
    ("living", "pairs", "cut_off"),
    [
        ("01234", product("4", "012"), "4"),
        ("012345", product("5", "012"), ""),  # three of six are not most
        ("01234567", [*product("7", "012345"), ("1", "2")], "7"),
        ("01234567", [*product("7", "0123456"), ("0", "1"), ("2", "3"), ("4", "5")], "7"),
        ("0123456789abc", product("bc", "0123456789"), "bc"),
        ("01234", product("01", "23"), ""),
        ("0123456789a", [*product("0", "12"), *product("3", "45"), *product("6", "78")], ""),
        ("012345", combinations("12345", 2), ""),  # all but one: it goes over that
    ],
)
def test_who_cannot_reach_most_though_most_reach_each_other_is_cut_off(
    living: str, pairs: Iterable[tuple[str, str]], cut_off: str
) -> None:
    named = [(PeerId(one * 64), PeerId(other * 64)) for one, other in pairs]
    broken = BrokenPaths.of(told(*both_ways(*named), all_living=living), len(living))
    assert broken.cut_off == {PeerId(each * 64) for each in cut_off}
    assert not broken.apart.keys() & broken.cut_off
    kept = {(one, other) for one, others in broken.apart.items() for other in others}
    assert kept == {pair for pair in both_ways(*named) if not broken.cut_off.intersection(pair)}


async def trained(count: int) -> Swarm:
    swarm = Swarm(make_spec(8 * count), seed=count, make_replica=vector_replica(50_000), gradient=pull)
    for _ in range(count):
        swarm.add(HostSettings(latency_s=0.01), TrainerSettings(4, 0.25))
    await swarm.run_until_step(4, limit_s=60)
    return swarm


async def members_of_late_rounds(swarm: Swarm) -> tuple[list[set[str]], float]:
    """Who took part in each of the rounds that a while after this end within `LOOKED_AT_S`, and steps a second."""
    await asyncio.sleep(LEARNT_S)
    first = max(rounds(swarm, "round.reduced"))
    await asyncio.sleep(LOOKED_AT_S)
    late = {step: groups for step, groups in rounds(swarm, "round.reduced").items() if step > first + 1}
    return [set(members) for groups in late.values() for members in groups.values()][:-1], len(late) / LOOKED_AT_S


@pytest.mark.parametrize(
    ("count", "cuts"),
    [(3, [(1, 2)]), (7, list(product((1, 2, 3), (4, 5, 6)))), (4, [(1, 2), (2, 3), (1, 3)])],
    ids=["a pair", "two sides of a hub", "a star"],
)
def test_all_take_part_again_over_those_that_all_can_reach(count: int, cuts: list[tuple[int, int]]) -> None:
    @virtually
    async def main() -> None:
        swarm = await trained(count)
        for one, other in cuts:
            swarm.internet.cut(f"peer-{one}", f"peer-{other}")
        late, steps_per_s = await members_of_late_rounds(swarm)
        assert late
        assert all(members == {peer.name for peer in swarm.alive()} for members in late)
        assert steps_per_s > 1.0  # those that lose a member, or wait for one, take seconds each
        await swarm.close()

    main()


@virtually
async def test_who_is_cut_off_from_most_others_stays_out_and_comes_back() -> None:
    swarm = await trained(8)
    others = {f"peer-{number}" for number in range(7)}
    for number in range(1, 7):
        swarm.internet.cut("peer-7", f"peer-{number}")
    late, steps_per_s = await members_of_late_rounds(swarm)
    assert late
    assert all(members == others for members in late)
    assert steps_per_s > 1.0
    assert [each.peer for each in swarm.log.of("member.cut_off")] == ["peer-7"]
    for number in range(1, 7):
        swarm.internet.restore("peer-7", f"peer-{number}")
    late, _ = await members_of_late_rounds(swarm)
    assert late
    assert all(members == others | {"peer-7"} for members in late)
    await swarm.close()


@virtually
async def test_peers_that_take_no_part_cut_nobody_off() -> None:
    swarm = await trained(3)
    victims = [swarm.peers[f"peer-{number}"] for number in range(2)]
    for number in range(5):
        idle = swarm.add(HostSettings(latency_s=0.01), TrainerSettings(4, 0.25), name=f"idle-{number}", load_s=1e6)
        await asyncio.sleep(1.0)
        for victim in victims:
            swarm.internet.cut(idle.name, victim.name)
        idle.session.board.put(Links(apart=tuple(link_key(victim.network.peer_id) for victim in victims)))
    late, _ = await members_of_late_rounds(swarm)
    assert late
    assert not [each for each in swarm.log.of("member.cut_off") if each.peer in {peer.name for peer in victims}]
    await swarm.close()
