"""A result that members say to hold is adopted where it may be committed, whatever that takes, and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec
import pytest

from minga.averaging.election import has_quorum, may_be_committed, ranking
from minga.averaging.matchmaking.attempt import JOIN, VIEW
from minga.averaging.matchmaking.votes import Position
from minga.averaging.messages import Accepted, AskView, FromLeader, Plan, Redirect, SignedPlan, View
from minga.core.errors import ProtocolError, RejectedError, RemoteError
from minga.core.refusal_code import RefusalCode
from minga.network.interface import PeerId
from minga.network.rpc.stream import MessageStream
from tests.averaging.matchmaking.test_formation import Camp, Member, Party, join_of
from tests.worlds.seeds import seeds, soaked
from tests.worlds.swarm_tools import later, virtually

pytestmark = pytest.mark.promise("no-silent-fork")

STEP = 2
"""The step whose first round is given up, where a test is about that."""
HELD, MADE_UP = "ab" * 16, "05" * 16
GHOSTS = tuple(PeerId(f"{number:064x}") for number in range(100, 105))
PEERS = [PeerId(f"{number:064x}") for number in range(7)]


# ---- members that say what is not so


async def take_seats(liar: Party, victim: Member, liars: int) -> None:
    """Join whichever group the victim leads, with a result that nobody made."""
    held = Accepted(1, liar.peer_id, 0, MADE_UP, MADE_UP)
    while True:
        await asyncio.sleep(0.1)
        is_member = victim.plans[-1][0].electorate > 5 or len(victim.formation.position.view) == 5 + liars
        with contextlib.suppress(RemoteError):
            async with liar.node.open(victim.party.peer_id, JOIN) as stream:
                join = join_of(liar, step=victim.step, ballot=2, accepted=held if is_member else None)
                await stream.send(join)
                while not isinstance(await stream.receive_one_of(FromLeader), Redirect | SignedPlan):
                    pass


@pytest.mark.parametrize(
    ("liars", "named"),
    [soaked(1, "nobody"), (2, "ghosts"), soaked(1, "all"), soaked(2, "nobody"), soaked(1, "ghosts"), soaked(2, "all")],
)
def test_liars_that_say_that_they_hold_a_result_cost_no_attempt(liars: int, named: str) -> None:
    """Each leader adopted it: it dismissed its group where the liar did not say whose result that is, and where it
    named peers that do not exist, no group ever had a quorum again.
    """

    @virtually
    async def main() -> None:
        camp = Camp(5, batch=100)
        everyone = tuple(party.peer_id for party in camp.parties)

        async def name(_: PeerId, stream: MessageStream) -> None:
            await stream.receive(AskView)
            await stream.send(View(GHOSTS if named == "ghosts" else everyone))

        hostile = [camp.stranger() for _ in range(liars)]
        for liar in hostile:
            if named != "nobody":
                liar.node.serve(VIEW, name)
        await camp.begin()
        await camp.until_step(1)
        for liar, member in itertools.product(hostile, camp.members):
            liar.network.process.run(take_seats(liar, member, liars))
        await asyncio.sleep(25.0)
        for member in camp.members:
            plans = [plan for plan, _ in member.plans]
            assert member.step > 16, (member.step, member.error)
            assert [plan.step for plan in plans] == list(range(len(plans))), "one attempt each"
            assert not any(plan.adopts for plan in plans)
            assert sum(plan.electorate == 5 + liars for plan in plans) > 14, "the liars have votes"
        await camp.close()

    main()


def test_no_member_follows_a_leader_that_adopts_what_no_quorum_can_have_made() -> None:
    @virtually
    async def main() -> None:
        camp = Camp(5, batch=60)
        await camp.begin()
        await camp.until_step(STEP)
        member = camp.members[0]
        plan = member.plans[-1][0]
        lie = msgspec.structs.replace(plan, step=member.step, adopts=MADE_UP, holders=(0,), view=GHOSTS)
        minority = msgspec.structs.replace(lie, view=(*plan.ids[:2], *GHOSTS))
        for false in (lie, minority):
            with pytest.raises(ProtocolError, match="no quorum of the last round"):
                member.formation.position.entering(false, 0.0)
        await camp.close()

    main()


# ---- members that hold a result


class Doubter(Member):
    """A member whose first round of `STEP` comes to nothing here: it holds the result, or lacks it, or it holds it and
    dies, so that nobody knows whether it applied it.
    """

    fate = "lacks"

    async def end_round(self, plan: Plan) -> None:
        if self.step != STEP or sum(each.step == STEP for each, _ in self.plans) > 1:
            await super().end_round(plan)
            return
        if self.fate == "dies":
            later(0.0, lambda: self.sight.world.internet.kill(self.party.network))
            await asyncio.sleep(math.inf)
        if self.fate == "holds":
            self.formation.give_up(plan, 0, HELD)
        await self.port.unseal()


class DoubtfulCamp(Camp):
    """Five members, of which some have the fates that are told, by their rank as the leader of `STEP`."""

    kind = Doubter

    def __init__(self, *fates: str) -> None:
        super().__init__(len(fates), batch=100)
        self.ranked = sorted(self.members, key=lambda member: self.order().index(member.party.peer_id))
        for member, fate in zip(self.ranked, fates, strict=True):
            assert isinstance(member, Doubter)
            member.fate = fate

    def order(self) -> list[PeerId]:
        return ranking("run", STEP, [party.peer_id for party in self.parties])

    def plans_of_the_step(self, member: Member) -> list[Plan]:
        return [plan for plan, _ in member.plans if plan.step == STEP]

    async def until_the_doubt(self) -> Plan:
        while not all(self.plans_of_the_step(member) for member in self.members):
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.4)  # the round is given up
        (first,) = {self.plans_of_the_step(member)[0] for member in self.members}
        return first


@pytest.mark.parametrize("way", ["refuses", "is silent", "is slow"])
def test_a_holder_that_cannot_be_asked_for_long_is_waited_for_and_believed(way: str) -> None:
    @virtually
    async def main() -> None:
        camp = DoubtfulCamp("lacks", "lacks", "holds", "dies", "dies")
        holder, rest = camp.ranked[2], camp.ranked[:3]
        answer, free_s = holder.formation._serve_view, math.inf
        asked = 0

        async def serve(peer: PeerId, stream: MessageStream) -> None:
            nonlocal asked
            asked += 1
            if asyncio.get_running_loop().time() < free_s:
                if way == "refuses":
                    raise RejectedError("not now", code=RefusalCode.STAND_BY)
                await asyncio.sleep(100.0 if way == "is silent" else 10.0)
            await answer(peer, stream)

        holder.party.node.serve(VIEW, serve)
        await camp.begin()
        first = await camp.until_the_doubt()
        if way != "is slow":
            await asyncio.sleep(100.0)
        free_s = asyncio.get_running_loop().time()
        members = [camp.members.index(member) for member in rest]
        await camp.until_step(STEP + 3, members, limit_s=200.0)
        for member in rest:  # one that refuses leads itself in the end
            assert {plan.adopts for plan in camp.plans_of_the_step(member)[1:]} == {first.round_id}, "one result"
            assert {plan.succession for plan in camp.plans_of_the_step(member)[1:]} == {first.ids}
        assert asked > (way != "is slow")
        await camp.close()

    main()


def test_without_the_holder_that_was_asked_too_few_are_left_for_another_result() -> None:
    @virtually
    async def main() -> None:
        camp = DoubtfulCamp("lacks", "lacks", "holds", "dies", "dies")
        holder, rest = camp.ranked[2], camp.ranked[:2]

        async def die(_peer: PeerId, _stream: MessageStream) -> None:
            later(0.0, lambda: camp.internet.kill(holder.party.network))
            await asyncio.sleep(math.inf)

        holder.party.node.serve(VIEW, die)
        await camp.begin()
        first = await camp.until_the_doubt()
        await asyncio.sleep(300.0)
        assert holder.party.network.state.gone
        assert all(camp.plans_of_the_step(member) == [first] for member in rest)
        await camp.close()

    main()


@pytest.mark.parametrize("holders", [2, 3])
def test_a_result_is_adopted_if_a_quorum_may_have_held_it_and_else_made_anew(holders: int) -> None:
    @virtually
    async def main() -> None:
        camp = DoubtfulCamp(*["lacks"] * (5 - holders), *["holds"] * holders)
        await camp.begin()
        first = await camp.until_the_doubt()
        await camp.until_step(STEP + 3)
        (second,) = {camp.plans_of_the_step(member)[1] for member in camp.members}
        assert second.adopts == (first.round_id if holders >= 3 else "")
        assert all(len(camp.plans_of_the_step(member)) == 2 for member in camp.members)
        await camp.close()

    main()


# ---- goodbyes of which one leader knows and another does not


def subsets(peers: Sequence[PeerId]) -> Iterator[set[PeerId]]:
    for size in range(len(peers) + 1):
        yield from map(set, itertools.combinations(peers, size))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_whatever_a_quorum_held_may_be_committed_whichever_goodbyes_its_leader_knew(size: int) -> None:
    view = PEERS[:size]
    for departed in subsets(view):
        electorate = [peer for peer in view if peer not in departed]
        for holders in subsets(electorate):
            if holders and has_quorum(holders, electorate):
                rest = [peer for peer in electorate if peer not in holders]
                assert all(may_be_committed(view, lacking) for lacking in subsets(rest))


@pytest.mark.parametrize("size", [1, 2, 6, 7])
def test_what_a_minority_says_is_not_committed_if_the_others_are_here(size: int) -> None:
    view = PEERS[:size]
    for liars in subsets(view):
        if 2 * len(liars) < size:
            assert not may_be_committed(view, set(view) - liars)


@pytest.mark.parametrize("seed", seeds(12, 400))
def test_the_makers_of_a_result_may_have_decided_whichever_goodbyes_their_leader_knew(seed: int) -> None:
    rng = random.Random(seed)
    view = tuple(PEERS[: rng.randrange(1, 8)])
    position = Position(PEERS[0], view=view).at(STEP)
    left = {peer for peer in view if rng.random() < 0.3}
    for peer in left:
        position = position.without(peer)
    for peer in left:
        position = position.with_again(peer) if rng.random() < 0.3 else position
    position = position.at(STEP)
    for known in subsets(sorted(left)):
        electorate = [peer for peer in view if peer not in known]
        for makers in subsets(electorate):
            if makers and has_quorum(makers, electorate):
                assert position.has_decided({*makers, *GHOSTS})
    assert not position.has_decided(GHOSTS) or left == set(view)
    for peer in left:
        position = position.with_again(peer)
    position = replace(position, view=tuple(PEERS)).at(STEP + 1)
    assert not position.has_decided(PEERS[:3])
