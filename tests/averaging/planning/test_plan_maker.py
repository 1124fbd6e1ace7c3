"""Plans at a peer's plan_maker: made once for a group, and refused where they are far too much for this peer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from minga.averaging.clocking.sample_quota import Registration
from minga.averaging.group import GroupSettings
from minga.averaging.links import BrokenPaths, LinkRow, Links, link_key
from minga.averaging.messages import GroupMember, Join, Part, PeerScore, Plan, Report
from minga.averaging.planning.plan_maker import PlanMaker
from minga.averaging.planning.signed_plan import unfair_parts
from minga.averaging.solver.division import Division, PartShare, SwarmRates
from minga.averaging.solver.planner import divide
from minga.averaging.solver.two_level import LARGE
from minga.averaging.strategy_choice import Contributors
from minga.core.errors import RejectedError
from minga.core.events.bus import Event, EventBus
from minga.core.refusal_code import RefusalCode
from minga.network.bandwidth.access_link import AccessRates
from minga.network.interface import Address, PeerId
from tests.worlds.reduce_world import one_vector
from tests.worlds.swarm_tools import virtually

PEERS = [PeerId(f"{index + 16:x}" * 32) for index in range(12)]
NUMEL = 1_000_000


class Board:
    """What one peer knows: everybody's rates, confirmed by everybody else."""

    def __init__(self, me: PeerId, upload: Mapping[PeerId, float]) -> None:
        self._me, self._upload = me, dict(upload)

    def links(self) -> dict[PeerId, Links]:
        return {
            peer: Links(
                int(rate),
                int(rate),
                rows=tuple(
                    LinkRow(link_key(other), *[int(self._upload[other])] * 4, 0)
                    for other in self._upload
                    if other != peer
                ),
            )
            for peer, rate in self._upload.items()
        }

    def broken_paths(self) -> BrokenPaths:
        return BrokenPaths({}, frozenset())

    def rates(self) -> AccessRates:
        own = self._upload.get(self._me)
        return AccessRates(own, own)


class Desk(PlanMaker):
    """A plan_maker that counts how often it solves, and notes its events."""

    def __init__(
        self, me: PeerId, upload: Mapping[PeerId, float], contributors: Callable[[int], Contributors] = lambda _: "all"
    ) -> None:
        self.events: list[Event] = []
        self.solved = 0
        bus = EventBus(asyncio.get_running_loop().time)
        bus.subscribe(self.events.append)
        clock = SimpleNamespace(now=lambda: 1.7e9)
        node: Any = SimpleNamespace(peer_id=me, run_id="run", events=bus, clock=clock, spawn=asyncio.ensure_future)
        node.introduce = lambda _: None
        settings = GroupSettings(100_000, one_vector(NUMEL), aggregates=True, contributors=contributors)
        board: Any = Board(me, upload)
        self.board = board
        super().__init__(node, settings, board, self._count)

    def _count(self, rates: SwarmRates, vector_bytes: float, former: Division | None = None) -> Division:
        self.solved += 1
        return divide(rates, vector_bytes, former)


def registrations(rates: Mapping[PeerId, float]) -> dict[PeerId, Registration]:
    report = Report(100, 10.0, 10, 0.0, 1.0)
    return {
        peer: Registration(
            Join(3, "0" * 32, Address(peer, ("1.2.3.4:5",)), True, True, rate, rate, report), report, 0.0
        )
        for peer, rate in rates.items()
    }


def plan_of(shares: Mapping[int, float]) -> Plan:
    members = tuple(GroupMember(Address(peer, ("1.2.3.4:5",)), True) for peer in PEERS)
    division = Division(tuple(PartShare(share, root) for root, share in shares.items()))
    parts, stop = [], 0.0
    for part in division.parts:
        stop += part.share
        parts.append(Part(round(stop * NUMEL), part.root))
    return Plan("0" * 32, 3, members, tuple(parts), 16384)


@virtually
async def test_a_plan_is_solved_once_while_nothing_moves() -> None:
    rates = dict.fromkeys(PEERS[:4], 1e6) | {PEERS[3]: 3e6}
    plan_maker = Desk(PEERS[0], rates)
    await plan_maker.prepare(3, 100_000, registrations(rates))
    first = await plan_maker.plan(3, registrations(rates))
    assert first.members[0].peer_id == PEERS[0]
    again = await plan_maker.plan(4, registrations({peer: rate * 1.05 for peer, rate in rates.items()}))
    assert plan_maker.solved == 1
    assert again.round_id != first.round_id

    def largest(plan: Plan) -> PeerId:
        stops = [0, *(part.stop for part in plan.parts)]
        sizes = [stop - start for start, stop in pairwise(stops)]
        return plan.members[plan.parts[sizes.index(max(sizes))].root].peer_id

    assert largest(first) == largest(again) == PEERS[3], "whatever the order of the members"
    await plan_maker.plan(5, registrations(rates | {PEERS[4]: 1e6}))
    assert plan_maker.solved == 2
    plan_maker.board._upload[PEERS[3]] = 1e6
    await plan_maker.plan(6, registrations(dict.fromkeys(PEERS[:4], 1e6)))
    assert plan_maker.solved == 3


@pytest.mark.parametrize("at_least", [None, 1e6])
def test_a_plan_has_the_rates_that_members_found_out_since_they_joined(at_least: float | None) -> None:
    """They join as their step begins: the first round of a run was planned as if nothing were known of anybody."""

    @virtually
    async def main() -> None:
        rates = {peer: 8e6 if number % 3 == 0 else 1e6 for number, peer in enumerate(PEERS)}
        plan_maker = Desk(PEERS[0], rates)
        joined = registrations(rates)
        known = await plan_maker.plan(3, joined)
        for registration in joined.values():
            registration.join = msgspec.structs.replace(
                registration.join, upload=at_least, download=at_least, upload_shown=False, download_shown=False
            )
        assert (await plan_maker.plan(3, joined)).parts == known.parts
        plan_maker.board._upload.clear()
        assert (await plan_maker.plan(3, joined)).parts != known.parts, "nobody found anything out"

    main()


@virtually
async def test_a_rate_that_a_member_showed_when_it_joined_counts() -> None:
    rates = {peer: 8e6 if number % 3 == 0 else 1e6 for number, peer in enumerate(PEERS)}
    plan_maker = Desk(PEERS[0], dict.fromkeys(PEERS, 1e6))
    before = await plan_maker.plan(3, registrations(rates))
    assert before.parts != (await plan_maker.plan(3, registrations(dict.fromkeys(PEERS, 1e6)))).parts


@virtually
async def test_a_leader_that_knows_no_rate_leaves_it_to_the_others_who_rests() -> None:
    """It asked in the first step, and for minutes let those compute whom the plans of others asked to rest."""
    plan_maker = Desk(PEERS[0], {})
    known = dict.fromkeys(PEERS[:4], 1e6)
    strangers = registrations(known)
    for registration in strangers.values():
        registration.join = msgspec.structs.replace(registration.join, upload=None, download=None)
    await plan_maker.prepare(0, 100_000, strangers)
    await asyncio.sleep(1.0)
    agreed = await plan_maker.plan(1, registrations(known))
    slow = agreed.rank_of(PEERS[3])
    plan_maker.remember(msgspec.structs.replace(agreed, resting=(slow,)))
    plan = await plan_maker.plan(2, registrations(known))
    assert [plan.ids[index] for index in plan.resting] == [PEERS[3]]


@virtually
async def test_who_is_to_do_it_all_refuses() -> None:
    upload = dict.fromkeys(PEERS, 1e6)  # alone it takes 44 s, equal parts 7 s
    all_to_one = plan_of({5: 1.0})
    victim, other = Desk(PEERS[5], upload), Desk(PEERS[6], upload)
    with pytest.raises(RejectedError, match="busy for 44 s, where equal parts take most 7 s") as caught:
        victim.check(all_to_one)
    assert (caught.value.code, caught.value.peer) == (RefusalCode.UNFAIR, PEERS[0])
    assert [event.kind for event in victim.events] == ["plan.refused"]
    other.check(all_to_one)
    victim.check(plan_of(dict.fromkeys(range(12), 1 / 12)))


@virtually
async def test_no_peer_makes_a_plan_fair_by_saying_that_it_is_slow_itself() -> None:
    for liar in (0, 3):
        victim = Desk(PEERS[5], dict.fromkeys(PEERS, 1e6) | {PEERS[liar]: 1.0})
        with pytest.raises(RejectedError, match=r"keeps this peer busy for 4\d s"):
            victim.check(plan_of({5: 1.0}))


@virtually
async def test_a_fast_peer_may_get_most_of_it_and_unknown_rates_are_no_reason() -> None:
    Desk(PEERS[5], dict.fromkeys(PEERS, 1e6) | {PEERS[5]: 1e7}).check(plan_of({5: 1.0}))
    Desk(PEERS[5], {}).check(plan_of({5: 1.0}))
    Desk(PEERS[5], dict.fromkeys(PEERS, 1e8)).check(plan_of({5: 1.0}))  # a matter of fractions of a second


@virtually
async def test_a_peer_on_a_slow_line_takes_part_with_its_own_vector() -> None:
    """Whose line takes 20 s for that could never take part among peers that need less than one."""
    rates = dict.fromkeys(PEERS, 1e8) | {PEERS[5]: 4.0 * NUMEL / 20}
    plan = await Desk(PEERS[0], rates).plan(3, registrations(rates))
    slow = Desk(PEERS[5], rates)
    slow.check(plan)
    with pytest.raises(RejectedError, match="busy for 37 s, where equal parts take most 0 s"):
        slow.check(plan_of(dict.fromkeys(range(12), 1 / 12)))


def test_clients_come_last_in_the_order_in_which_members_mend_the_round() -> None:
    @virtually
    async def main() -> None:
        clients = set(PEERS[1:4])
        taken = {
            peer: Registration(
                msgspec.structs.replace(registration.join, aggregates=peer not in clients), registration.report, 0.0
            )
            for peer, registration in registrations(dict.fromkeys(PEERS[:8], 1e6)).items()
        }
        for step in range(8):
            plan = await Desk(PEERS[0], dict.fromkeys(PEERS[:8], 1e6)).plan(step, taken)
            assert plan.members[0].peer_id == PEERS[0]
            assert {member.peer_id for member in plan.members[-3:]} == clients

    main()


@virtually
async def test_slow_paths_are_a_reason_for_a_long_round_and_not_the_leaders_fault() -> None:
    """A peer whose probe met slow paths only takes its line for slow; equal parts would take as long."""
    rate, slow, me = 1e7, 1e5, 5
    halves = [set(PEERS[:6]), set(PEERS[6:])]

    def row(peer: PeerId, other: PeerId) -> LinkRow:
        apart = not any({peer, other} <= half for half in halves)
        return LinkRow(link_key(other), *[int(slow if apart else rate)] * 4, 10 if apart else 0)

    links = {
        peer: Links(int(rate), int(rate), rows=tuple(row(peer, other) for other in PEERS if other != peer))
        for peer in PEERS
    }
    plan = plan_of(dict.fromkeys(range(12), 1 / 12))
    assert unfair_parts(plan, links, AccessRates(slow, slow), me, 4.0 * NUMEL) is not None, "seen by its line alone"
    assert unfair_parts(plan, links, AccessRates(4 * slow, 4 * slow), me, 4.0 * NUMEL) is None
    fast = {peer: Links(int(rate), int(rate)) for peer in PEERS}
    assert unfair_parts(plan, fast, AccessRates(4 * slow, 4 * slow), me, 4.0 * NUMEL) is not None


@virtually
async def test_a_plan_with_one_contributor_is_solved_for_one_sender() -> None:
    rates = dict.fromkeys(PEERS[:4], 1e6)
    there = registrations(rates)
    for place, peer in enumerate(PEERS[:4]):
        there[peer].report = msgspec.structs.replace(there[peer].report, score=PeerScore(4.0 - place))
    best, all_of_them = Desk(PEERS[0], rates, lambda _: "best"), Desk(PEERS[0], rates)
    plan, usual = await best.plan(3, there), await all_of_them.plan(3, there)
    assert [plan.ids[index] for index in plan.contributors] == [PEERS[3]]
    assert [score and score.value for score in plan.scores] == [4.0 - PEERS.index(peer) for peer in plan.ids]
    assert (len(usual.contributors), usual.scores) == (4, ())
    assert plan.predicted_s is not None
    assert usual.predicted_s is not None
    assert plan.predicted_s < 0.8 * usual.predicted_s
    member = Desk(PEERS[2], rates, lambda _: "best")
    member.check(plan, {PeerScore(2.0)})
    for said, other in (({PeerScore(1.5)}, plan), ({PeerScore(2.0)}, usual)):
        with pytest.raises(RejectedError, match="score"):
            member.check(other, said)
    with pytest.raises(RejectedError, match="one contributor in a round of all"):
        all_of_them.check(plan)


@virtually
async def test_the_score_of_a_member_without_samples_does_not_lead() -> None:
    """It has the least loss, and nothing to give: a round of it would come to nothing, however often it is tried."""
    rates = dict.fromkeys(PEERS[:4], 1e6)
    leader, there = Desk(PEERS[0], rates, lambda _: "best"), registrations(rates)
    for place, peer in enumerate(there):
        there[peer].report = msgspec.structs.replace(there[peer].report, score=PeerScore(4.0 - place))
    there[PEERS[3]].report = msgspec.structs.replace(there[PEERS[3]].report, samples=0)
    plan = await leader.plan(3, there)
    assert [plan.ids[each] for each in plan.contributors] == [PEERS[2]]
    assert plan.scores[plan.rank_of(PEERS[3])] is None


def ways_of(plan: Plan) -> set[tuple[PeerId, frozenset[PeerId]]]:
    """The root and the relays of each part."""
    ids = plan.ids
    return {(ids[part.root], frozenset(ids[relay] for relay in part.relays)) for part in plan.parts}


@virtually
async def test_the_next_leader_of_a_large_group_keeps_the_ways_over_which_it_is_connected() -> None:
    peers = [PeerId(f"{index + 256:x}".rjust(64, "0")) for index in range(LARGE + 6)]
    rates = {peer: 1e6 * (1.0 + (7 * place % 13)) for place, peer in enumerate(peers)}
    other = Desk(peers[1], rates)
    plan = await Desk(peers[0], rates).plan(3, registrations(rates))
    assert len(plan.sites) > 1
    other.remember(plan)
    moved = {peer: rate * (1.1 if place % 2 else 0.9) for place, (peer, rate) in enumerate(rates.items())}
    assert ways_of(await other.plan(4, registrations(moved))) <= ways_of(plan)
    assert ways_of(await Desk(peers[1], rates).plan(4, registrations(moved))) != ways_of(plan), "it would be another"
    fewer = {peer: moved[peer] for peer in peers[1:]}
    assert len((await other.plan(5, registrations(fewer))).members) == len(fewer), "of other members it is made anew"
