"""Attempts at one step in any order, with members that come and go: never do two results get a quorum."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from minga.averaging.election import Electorate, has_quorum
from minga.averaging.matchmaking.votes import MOST_DISTANCE, MOST_RAISED, Position, Vote, ballot_of, is_same
from minga.averaging.messages import MAX_BALLOT, Accepted, GroupMember, Part, Plan
from minga.core.errors import ProtocolError
from minga.network.interface import Address, PeerId
from tests.worlds.seeds import seeds

pytestmark = pytest.mark.promise("no-silent-fork")

STEP, ACTS = 7, 400
PEERS = [PeerId(f"{i:064x}") for i in range(9)]


def voter(peer: PeerId) -> Position:
    return Position(peer, has_vote=True).at(STEP)


def plan_of(
    ballot: int,
    members: list[PeerId],
    voters: list[PeerId],
    size: int,
    adopts: str = "",
    holders: Sequence[PeerId] = (),
) -> Plan:
    places = {peer: index for index, peer in enumerate(members)}
    return Plan(
        f"{random.getrandbits(128):032x}",
        STEP,
        tuple(GroupMember(Address(peer), True) for peer in members),
        (Part(10, 0),),
        1 << 16,
        ballot=ballot,
        voters=tuple(places[peer] for peer in voters),
        electorate=size,
        tie_breaker=places.get(PEERS[0]),
        adopts=adopts,
        holders=tuple(places[peer] for peer in holders),
    )


def promised(position: Position, *leaders: PeerId) -> list[int]:
    """What is promised to one leader after the other."""
    numbers = []
    for leader in leaders:
        position = position.promising(leader)
        numbers.append(position.promised_to(leader))
    return numbers


def test_the_first_leader_is_promised_one_and_each_other_one_more() -> None:
    one, other = PEERS[1:3]
    assert promised(voter(PEERS[0]), one, one, other, one) == [1, 1, 2, 3]
    position = voter(PEERS[0]).promising(other).promising(one).raised(one, 9)
    assert position.promised_to(one) == 9
    assert position.raised(other, 12) == position, "it was left"
    assert position.promised_to(other) == 0
    assert promised(position, other) == [10]


def test_a_leader_that_sent_its_plan_needs_a_new_number() -> None:
    position = voter(PEERS[1]).promising(PEERS[0]).entering(plan_of(1, PEERS[:3], PEERS[:3], 3), 0.0)
    assert position.raised(PEERS[0], 5) == position
    assert promised(position, PEERS[0]) == [2]


def test_a_plan_of_a_leader_that_was_left_is_refused() -> None:
    position = voter(PEERS[2]).promising(PEERS[0]).promising(PEERS[1])
    with pytest.raises(ProtocolError, match="lower number"):
        position.entering(plan_of(1, PEERS[:3], PEERS[:3], 3), 0.0)


def test_what_was_held_is_forgotten_when_another_round_writes_over_it() -> None:
    """Else this peer would pass for a holder of a result of which it has only parts."""
    held = Accepted(1, PEERS[1], 0, "a" * 32, "b" * 32)
    position = voter(PEERS[0]).holding(held, tuple(PEERS[:3])).promising(PEERS[1])
    position = position.entering(plan_of(1, [PEERS[1], PEERS[0]], PEERS[:2], 2, "a" * 32, [PEERS[0]]), 0.0)
    assert position.accepted == held
    position = position.promising(PEERS[1])
    assert position.entering(plan_of(2, [PEERS[1], PEERS[0]], PEERS[:2], 2), 0.0).accepted is None
    assert position.at(STEP - 1).at(STEP).accepted is None


def test_a_promise_is_raised_by_bounded_amounts_only() -> None:
    """Each peer would else promise a number that no message can say, and no other leader could take it."""
    position = voter(PEERS[0]).promising(PEERS[1])
    for _ in range(100):  # a leader that asks again and again raises it no further
        position = position.raised(PEERS[1], MAX_BALLOT)
        assert position.promised_to(PEERS[1]) == 1 + MOST_RAISED
    assert promised(position, PEERS[2]) == [2 + MOST_RAISED]


def test_what_counts_in_a_group_that_one_leads_can_be_promised_and_is_raised_by_no_promise() -> None:
    leader, member = voter(PEERS[0]).promising(PEERS[0]), voter(PEERS[1])
    for _ in range(20):
        member = member.promising(PEERS[2]).promising(PEERS[0])
    highest = leader.highest_led
    leader, member = leader.raised(PEERS[0], highest), member.raised(PEERS[0], highest)
    assert leader.promised_to(PEERS[0]) == member.promised_to(PEERS[0]) == highest
    assert promised(leader, PEERS[0]) == [highest]
    assert leader.promising(PEERS[0]).highest_led == highest


@pytest.mark.parametrize("ballot", [1 << 21, MAX_BALLOT])
@pytest.mark.parametrize("is_first_group", [False, True])
def test_a_plan_with_a_number_near_the_last_one_is_refused(ballot: int, is_first_group: bool) -> None:
    """The peer would have to promise the next leader a higher number than a message may have."""
    position = Position(PEERS[0]).at(STEP) if is_first_group else voter(PEERS[0])
    members = [PEERS[1], PEERS[0]]
    with pytest.raises(ProtocolError, match="no attempt"):
        position.promising(PEERS[1]).entering(plan_of(ballot, members, members, 0 if is_first_group else 2), 0.0)


def test_who_was_started_anew_has_no_vote_until_a_round_is_committed() -> None:
    position = Position(PEERS[0]).at(STEP)
    assert promised(position, PEERS[1]) == [0]
    position = position.after(plan_of(1, PEERS[:3], PEERS[:3], 3)).at(STEP + 1)
    assert promised(position, PEERS[1]) == [1]
    assert promised(position.at(STEP), PEERS[1]) == [0], "it went back to a step in which it forgot what it promised"


VIEW = (*PEERS[:3], PEERS[3])


@pytest.mark.parametrize(
    ("voters", "voteless", "deciding"),
    [
        (PEERS[1:4], PEERS[:1], VIEW),  # most of the last round's members decide
        (PEERS[2:4], PEERS[:2], tuple(PEERS[2:4])),  # all are here, and the others were started anew
        (PEERS[2:4], PEERS[:1], VIEW),  # one is missing: it may be past the step
        (PEERS[3:4], PEERS[:2], VIEW),  # one with a vote is in another attempt
    ],
)
def test_where_most_were_started_anew_the_others_decide_if_all_are_here(
    voters: list[PeerId], voteless: list[PeerId], deciding: tuple[PeerId, ...]
) -> None:
    votes = {peer: Vote(1) for peer in voters} | {peer: Vote(0) for peer in voteless}
    if len(voters) == 1:
        votes[PEERS[2]] = Vote(2)
    assert Position(PEERS[0], view=VIEW).deciding(votes, voters) == deciding


@dataclass
class Attempt:
    """What a leader knows of its members: the numbers that they promised, and what they held when they joined."""

    leader: PeerId
    joined: dict[PeerId, Vote] = field(default_factory=dict)

    @property
    def ballot(self) -> int:
        return ballot_of(self.joined, MAX_BALLOT)


@dataclass
class Round:
    """A plan under way: what it will result in, and who said that it holds this."""

    plan: Plan
    value: str
    held: set[PeerId] = field(default_factory=set)


class Play:
    """Random acts of some peers at one step; a peer takes part in one attempt or round at a time."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.peers = PEERS[: self.rng.choice((3, 4, 5, 6))]
        self.positions = {peer: replace(voter(peer), view=tuple(self.peers)) for peer in self.peers}
        self.attempts: dict[PeerId, Attempt] = {}
        self.with_leader: dict[PeerId, PeerId] = {}
        self.rounds: list[Round] = []
        self.in_round: dict[PeerId, Round] = {}
        self.values: dict[str, str] = {}  # round id -> what came of it
        self.committed: set[str] = set()
        self.left_out = 0  # what members held and none can have committed

    def act(self) -> None:
        peer = self.rng.choice(self.peers)
        if peer in self.in_round:
            self.rng.choice((self.hold, self.give_up))(peer)
        elif peer not in self.with_leader or self.rng.random() < 0.1:
            self.join(peer)
        else:
            self.rng.choice((self.ask, self.close))(peer)

    def join(self, peer: PeerId) -> None:
        """Leave whichever leader it is with (that may not notice) and join another one, or lead itself."""
        leaders = [p for p in self.peers[:3] if p not in self.in_round]
        if not leaders:
            return
        leader = self.rng.choice(leaders)
        attempt = self.attempts.setdefault(leader, Attempt(leader))
        for who in {peer, leader}:
            if who == peer or who not in attempt.joined:
                position = self.positions[who] = self.positions[who].promising(leader)
                attempt.joined[who] = Vote(position.promised_to(leader), position.accepted)
                self.with_leader[who] = leader

    def ask(self, leader: PeerId) -> None:
        """Ask for the highest number; the question may get lost."""
        attempt = self.attempts.get(leader)
        for who in list(attempt.joined) if attempt else []:
            assert attempt is not None
            if self.rng.random() < 0.8 and self.with_leader.get(who) == leader:
                position = self.positions[who] = self.positions[who].raised(leader, attempt.ballot)
                promised, vote = position.promised_to(leader), attempt.joined[who]
                attempt.joined[who] = vote._replace(ballot=max(promised, vote.ballot))

    def close(self, leader: PeerId) -> None:
        """Send the plan if enough promised its number; it may not reach some members."""
        attempt = self.attempts.get(leader)
        if attempt is None or self.with_leader.get(leader) != leader:
            return
        ballot = attempt.ballot
        voters = [peer for peer, (promised, _) in attempt.joined.items() if promised == ballot]
        if not has_quorum(voters, self.peers) or leader not in voters:
            return
        newest = self.positions[leader].newest_held(attempt.joined, voters)
        self.left_out += newest is None and any(held for _, held in attempt.joined.values())
        members = [leader, *(peer for peer in attempt.joined if peer != leader)]
        holders = [peer for peer, (_, held) in attempt.joined.items() if held and newest and is_same(held, newest)]
        plan = plan_of(ballot, members, voters, len(self.peers), newest.round_id if newest else "", holders)
        value = self.values[newest.round_id] if newest else f"{len(self.rounds)}"
        self.values[plan.round_id] = value
        del self.attempts[leader]
        round = Round(plan, value)
        self.rounds.append(round)
        for who in members:
            if who in holders and self.positions[who].accepted != attempt.joined[who].accepted:
                continue  # it left and came back since: the plan goes over a stream that it closed
            if self.with_leader.get(who) == leader and (who == leader or self.rng.random() < 0.9):
                self.positions[who] = self.positions[who].entering(plan, 0.0)
                self.in_round[who] = round
            if self.with_leader.get(who) == leader:
                del self.with_leader[who]

    def hold(self, peer: PeerId) -> None:
        round = self.in_round[peer]
        round.held.add(peer)
        members = [member.peer_id for member in round.plan.members]
        if Electorate.of(round.plan).is_quorum(members.index(one) for one in round.held):
            self.committed.add(round.value)

    def give_up(self, peer: PeerId) -> None:
        round = self.in_round.pop(peer)
        if peer in round.held:
            leader, result = round.plan.members[0].peer_id, round.plan.result_id
            held = Accepted(round.plan.ballot, leader, 0, result, f"{int(round.value):032x}")
            self.positions[peer] = self.positions[peer].holding(held, ())


@pytest.mark.parametrize("seed", seeds(40, 1000))
def test_no_two_results_of_a_step_get_a_quorum_whatever_happens(seed: int) -> None:
    play = Play(seed)
    for _ in range(ACTS):
        play.act()
    assert len(play.committed) <= 1


def test_the_random_acts_get_to_results_and_to_second_attempts() -> None:
    plays = [Play(seed) for seed in range(15)]
    for play in plays:
        for _ in range(ACTS):
            play.act()
    assert sum(bool(play.committed) for play in plays) > 7
    assert any(len(play.rounds) > 3 and any(round.plan.adopts for round in play.rounds) for play in plays)
    assert any(play.left_out for play in plays)


def test_newcomers_go_with_the_members_in_sight_and_not_with_each_other() -> None:
    old, new, late = PEERS[:3], PEERS[3:6], PEERS[6]
    first = Position(new[0]).come_back(dict.fromkeys(old, 0), 0.0)
    second = Position(new[1]).come_back(dict.fromkeys(old, 0) | {new[0]: first.distance}, 0.0)
    assert first.origin == second.origin == tuple(old)
    assert first.distance == second.distance == 1
    third = Position(late).come_back({new[0]: first.distance, new[1]: second.distance, new[2]: 2}, 0.0)
    assert (third.origin, third.distance) == (tuple(new[:2]), 2)
    assert not first.may_begin_with(late, [*new, late])
    assert first.may_begin_with(late, [*old[:2], *new, late])
    assert first.may_begin_with(old[0], [old[0], *new])
    for peer in old:
        first = first.without(peer)
    assert first.may_begin_with(late, [*new, late]), "all members said goodbye"


def test_a_distance_has_bounds_and_ends_with_a_round() -> None:
    position = Position(PEERS[0]).come_back({PEERS[1]: MOST_DISTANCE}, 0.0)
    assert position.distance == MOST_DISTANCE
    assert position.after(plan_of(1, PEERS[:2], PEERS[:2], 2)).distance == 0
    assert position.regrouped(1, PEERS[:2], is_one=True).distance == 0
    assert position.regrouped(1, PEERS[:2], is_one=False).distance == 1
