"""Attempts at one step in any order, with members that come and go: never do two results get a quorum."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from minga.averaging.election import Electorate, has_quorum, may_be_committed
from minga.averaging.matchmaking.succession import MOST_RAISED, Acceptor
from minga.averaging.messages import MAX_BALLOT, Accepted, GroupMember, Part, Plan
from minga.core.errors import ProtocolError
from minga.network.interface import Address, PeerId
from tests.worlds.seeds import seeds

STEP, ACTS = 7, 400
PEERS = [PeerId(f"{i:064x}") for i in range(9)]


def voter(peer: PeerId) -> Acceptor:
    acceptor = Acceptor(peer)
    acceptor.commit()
    acceptor.begin_step(STEP)
    return acceptor


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


def test_the_first_leader_is_promised_one_and_each_other_one_more() -> None:
    acceptor, (one, other) = voter(PEERS[0]), PEERS[1:3]
    assert [acceptor.promise(peer) for peer in (one, one, other, one)] == [1, 1, 2, 3]
    assert acceptor.raise_to(one, 9) == 9
    assert acceptor.raise_to(other, 12) == 0, "it was left"
    assert acceptor.promise(other) == 10


def test_a_leader_that_sent_its_plan_needs_a_new_number() -> None:
    acceptor = voter(PEERS[1])
    ballot = acceptor.promise(PEERS[0])
    plan = plan_of(ballot, PEERS[:3], PEERS[:3], 3)
    acceptor.enter(plan)
    assert acceptor.raise_to(PEERS[0], 5) == 0
    assert acceptor.promise(PEERS[0]) == 2


def test_a_plan_of_a_leader_that_was_left_is_refused() -> None:
    acceptor = voter(PEERS[2])
    first = acceptor.promise(PEERS[0])
    acceptor.promise(PEERS[1])
    with pytest.raises(ProtocolError, match="lower number"):
        acceptor.enter(plan_of(first, PEERS[:3], PEERS[:3], 3))


def test_what_was_held_is_forgotten_when_another_round_writes_over_it() -> None:
    """Else this peer would pass for a holder of a result of which it has only parts."""
    acceptor = voter(PEERS[0])
    held = Accepted(1, PEERS[1], 0, "a" * 32, "b" * 32)
    acceptor.hold(held, tuple(PEERS[:3]))
    ballot = acceptor.promise(PEERS[1])
    acceptor.enter(plan_of(ballot, [PEERS[1], PEERS[0]], PEERS[:2], 2, "a" * 32, [PEERS[0]]))
    assert acceptor.accepted == held
    ballot = acceptor.promise(PEERS[1])
    acceptor.enter(plan_of(ballot, [PEERS[1], PEERS[0]], PEERS[:2], 2))
    assert acceptor.accepted is None
    acceptor.hold(held, tuple(PEERS[:3]))
    acceptor.begin_step(STEP - 1)
    acceptor.begin_step(STEP)
    assert acceptor.accepted is None


def test_a_promise_is_raised_by_bounded_amounts_only() -> None:
    acceptor = voter(PEERS[0])
    acceptor.promise(PEERS[1])
    assert acceptor.raise_to(PEERS[1], 1 << 32) == 1 + MOST_RAISED


def test_a_leader_that_asks_again_and_again_raises_a_promise_no_further() -> None:
    """Each peer would else promise a number that no message can say, and no other leader could take it."""
    acceptor = voter(PEERS[0])
    acceptor.promise(PEERS[1])
    assert max(acceptor.raise_to(PEERS[1], MAX_BALLOT) for _ in range(100)) == 1 + MOST_RAISED
    assert acceptor.promise(PEERS[2]) == 2 + MOST_RAISED


def test_what_counts_in_a_group_that_one_leads_can_be_promised_and_is_raised_by_no_promise() -> None:
    leader, member = voter(PEERS[0]), voter(PEERS[1])
    for _ in range(20):
        member.promise(PEERS[2])
        member.promise(PEERS[0])
    leader.promise(PEERS[0])
    highest = leader.highest_led
    assert leader.raise_to(PEERS[0], highest) == member.raise_to(PEERS[0], highest) == highest
    assert leader.promise(PEERS[0]) == highest
    assert leader.highest_led == highest


@pytest.mark.parametrize("ballot", [1 << 21, MAX_BALLOT])
@pytest.mark.parametrize("is_first_group", [False, True])
def test_a_plan_with_a_number_near_the_last_one_is_refused(ballot: int, is_first_group: bool) -> None:
    """The peer would have to promise the next leader a higher number than a message may have."""
    acceptor = Acceptor(PEERS[0]) if is_first_group else voter(PEERS[0])
    acceptor.begin_step(STEP)
    acceptor.promise(PEERS[1])
    members = [PEERS[1], PEERS[0]]
    with pytest.raises(ProtocolError, match="no attempt"):
        acceptor.enter(plan_of(ballot, members, members, 0 if is_first_group else 2))
    assert acceptor.promise(PEERS[2]) <= 2


def test_who_was_started_anew_has_no_vote_until_a_round_is_committed() -> None:
    acceptor = Acceptor(PEERS[0])
    acceptor.begin_step(STEP)
    assert acceptor.promise(PEERS[1]) == 0
    acceptor.commit()
    acceptor.begin_step(STEP + 1)
    assert acceptor.promise(PEERS[1]) == 1
    acceptor.begin_step(STEP)
    assert acceptor.promise(PEERS[1]) == 0, "it went back to a step in which it forgot what it promised"


def is_same(one: Accepted, other: Accepted) -> bool:
    return (one.round_id, one.fingerprint) == (other.round_id, other.fingerprint)


@dataclass
class Attempt:
    """What a leader knows of its members: the numbers that they promised, and what they held when they joined."""

    leader: PeerId
    joined: dict[PeerId, tuple[int, Accepted | None]] = field(default_factory=dict)

    @property
    def ballot(self) -> int:
        return max((ballot for ballot, _ in self.joined.values()), default=0)


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
        self.acceptors = {peer: voter(peer) for peer in self.peers}
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
                acceptor = self.acceptors[who]
                attempt.joined[who] = acceptor.promise(leader), acceptor.accepted
                self.with_leader[who] = leader

    def ask(self, leader: PeerId) -> None:
        """Ask for the highest number; the question may get lost."""
        attempt = self.attempts.get(leader)
        for who in list(attempt.joined) if attempt else []:
            assert attempt is not None
            if self.rng.random() < 0.8 and self.with_leader.get(who) == leader:
                promised, held = self.acceptors[who].raise_to(leader, attempt.ballot), attempt.joined[who][1]
                attempt.joined[who] = max(promised, attempt.joined[who][0]), held

    def close(self, leader: PeerId) -> None:
        """Send the plan if enough promised its number; it may not reach some members."""
        attempt = self.attempts.get(leader)
        if attempt is None or self.with_leader.get(leader) != leader:
            return
        ballot = attempt.ballot
        voters = [peer for peer, (promised, _) in attempt.joined.items() if promised == ballot]
        if not has_quorum(voters, self.peers) or leader not in voters:
            return
        newest = self.newest(attempt, voters)
        members = [leader, *(peer for peer in attempt.joined if peer != leader)]
        holders = [peer for peer, (_, held) in attempt.joined.items() if held and newest and is_same(held, newest)]
        plan = plan_of(ballot, members, voters, len(self.peers), newest.round_id if newest else "", holders)
        value = self.values[newest.round_id] if newest else f"{len(self.rounds)}"
        self.values[plan.round_id] = value
        del self.attempts[leader]
        round = Round(plan, value)
        self.rounds.append(round)
        for who in members:
            if who in holders and self.acceptors[who].accepted != attempt.joined[who][1]:
                continue  # it left and came back since: the plan goes over a stream that it closed
            if self.with_leader.get(who) == leader and (who == leader or self.rng.random() < 0.9):
                self.acceptors[who].enter(plan)
                self.in_round[who] = round
            if self.with_leader.get(who) == leader:
                del self.with_leader[who]

    def newest(self, attempt: Attempt, voters: list[PeerId]) -> Accepted | None:
        """The latest result that may be committed, by what the members of an attempt say."""

        def may_be(one: Accepted) -> bool:
            held = {peer for peer, (_, held) in attempt.joined.items() if held and is_same(held, one)}
            return may_be_committed(self.peers, set(voters) - held)

        accepted = [held for _, held in attempt.joined.values() if held is not None]
        counted = [one for one in accepted if may_be(one)]
        self.left_out += len(accepted) - len(counted)
        return max(counted, key=lambda one: one.order, default=None)

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
            self.acceptors[peer].hold(held, ())


@pytest.mark.parametrize("seed", seeds(100, 1000))
def test_no_two_results_of_a_step_get_a_quorum_whatever_happens(seed: int) -> None:
    play = Play(seed)
    for _ in range(ACTS):
        play.act()
    assert len(play.committed) <= 1


def test_the_random_acts_get_to_results_and_to_second_attempts() -> None:
    plays = [Play(seed) for seed in range(40)]
    for play in plays:
        for _ in range(ACTS):
            play.act()
    assert sum(bool(play.committed) for play in plays) > 20
    assert any(len(play.rounds) > 3 and any(round.plan.adopts for round in play.rounds) for play in plays)
    assert any(play.left_out for play in plays)
