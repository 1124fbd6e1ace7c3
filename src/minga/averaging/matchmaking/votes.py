"""What one peer brings to the next step: its past, its promises, and what follows from them for who decides the step.

`Position` is a record that never changes; whatever happens to a peer leads to the next one. Nothing here waits or looks
at a clock, so all of it can be tried out by hand. `averaging/allreduce/commit.py` has the whole protocol, and why it is
safe.

*Promises.* A step may take several attempts: a leader is lost, a round is given up. Attempts have numbers. To join a
leader is to promise it: from now on this peer holds no result of an attempt with a lower number, nor one of the same
number under another leader. So the first leader of a step is promised 1, and each leader joined after it one more than
the last. A leader whose members promised different numbers asks all of them for the highest (`Prepare`). What this peer
held when a round was given up it tells each leader that it joins: another member may have applied it.

*Who decides.* The members of the last round do: most of them have to be in the group with their votes, those not
counted who said goodbye. Where all of them are in the group, and most have no vote since they were started anew, the
others decide. Whose result an earlier attempt has, if it has one, is its members' affair: they are the next step's
electorate.

*What members hold.* A member may say that it holds a result that nobody made, so its word alone counts for nothing. A
committed result was held by a quorum, which shares a member with each other quorum. If the members that promised this
attempt and do not hold the result are a quorum, it was not committed and never will be: the plan reduces anew. For that
no leader has to find out who lies, and no member is left out of anything, because a true holder must not be.

Where too few members are here to tell, the result may be committed. Then it is adopted, or the step waits for a holder
that tells whose it is, however long that takes: a timeout proves no lie. So lies cost time only where the liars and the
members that are away could be a quorum together. There, by staying away, the liars could stop the step as well (unless
many members said goodbye in that very step). A result is adopted only if a quorum may have made it, as far as the
leader and each member know. But where the liars name members that are away, and serve a made-up vector, nothing tells
it from a true one; runs that have to bear that need secure steps (`minga/security`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from minga.averaging.allreduce.round import IDLE_S, LATE
from minga.averaging.election import by_tie_breaker, has_quorum, may_be_committed
from minga.averaging.messages import Accepted, Plan
from minga.core.errors import ProtocolError
from minga.network.interface import PeerId

MOST_RAISED = 1000
"""By how much a leader may raise a promise in all: a step has few attempts, and numbers must not run out."""
MOST_AHEAD = 1 << 20
"""By how much the number of a plan may exceed a promise: no honest leaders can get so far apart."""
RECENT_S = 60.0
"""Seconds after a round for which its members count for a peer that had to fetch the state."""
UNFORESEEN_S = 60.0
"""How long members that are still at work are waited for in a round of which nothing was foreseen."""
MOST_DISTANCE = 1000
"""The longest distance from the last round that a peer tells."""


class Vote(NamedTuple):
    """What a member of a group said when it joined: the number that it promised to the leader, 0 if it has no vote, and
    the latest result that it held in an attempt which it gave up.
    """

    ballot: int
    accepted: Accepted | None = None


@dataclass(frozen=True)
class Position:
    """Where one peer stands.

    `me` is this peer. Where half of a round's members are left, those go on that have the `organiser` among them.

    Its state is that of `step`, in the `epoch` of the organisers' last regroup that it followed; `history` stands for
    all rounds that led to it (32 hexadecimal digits), `previous` is the fingerprint of the reduced vector that did,
    empty if it came in another way.

    `view` are the members of the last round that this peer took part in, its leader first; empty before the first. The
    `origin` are those who decide until then, where this peer has its state from others: it is at a `distance` from the
    last round, one more than theirs. Most of those that it had `seen` shortly before have to agree. It `entered` a
    round with these members last, by a plan that came at `planned_s` and may take its members until `late_s` (seconds
    of the loop's clock), and the `clients` among them could not be dialled. It waited for the `tardy` in vain, which
    have not joined it since. Of its view, the `departed` said goodbye and are gone, and the `departed_before` are gone
    since before this step or said goodbye in it, even if they are back.

    It `has_vote` if its process took part in a committed round before, so that it forgot no promise. It `promised` this
    number, the highest at this step, to `leader`, and `joined` that with one; the number `is_used` once a plan came
    with it. `accepted` is the latest result that it held in an attempt that it gave up, made by the members
    `succession`, the leader first.
    """

    me: PeerId
    organiser: PeerId | None = None
    step: int = -1
    epoch: int = 0
    history: str = ""
    previous: str = ""
    view: tuple[PeerId, ...] = ()
    origin: tuple[PeerId, ...] = ()
    seen: tuple[PeerId, ...] = ()
    distance: int = 0
    entered: tuple[PeerId, ...] = ()
    planned_s: float = -math.inf
    late_s: float = -math.inf
    clients: frozenset[PeerId] = frozenset()
    tardy: frozenset[PeerId] = frozenset()
    departed: frozenset[PeerId] = frozenset()
    departed_before: frozenset[PeerId] = frozenset()
    has_vote: bool = False
    leader: PeerId | None = None
    promised: int = 0
    joined: int = 0
    is_used: bool = False
    accepted: Accepted | None = None
    succession: tuple[PeerId, ...] = ()

    @property
    def everyone(self) -> tuple[PeerId, ...]:
        """The view, or before the first round those that this peer got its state from."""
        return self.view or self.origin

    # ---- from step to step

    def at(self, step: int) -> Position:
        """An attempt at `step` begins, perhaps not the first. A peer that went back to an earlier step has forgotten
        what it promised there: it has no vote until its next committed round.
        """
        departed = self.departed.intersection((*self.everyone, *self.seen))
        if step == self.step:
            return replace(self, departed=departed)
        return replace(
            self,
            step=step,
            departed=departed,
            departed_before=departed,
            has_vote=self.has_vote and step > self.step,
            leader=None,
            promised=0,
            joined=0,
            accepted=None,
            succession=(),
        )

    def after(self, plan: Plan) -> Position:
        """The round of this plan is committed: the members that made its result are the next view."""
        return replace(self, view=plan.succession, distance=0, has_vote=True)

    def holding(self, accepted: Accepted, succession: tuple[PeerId, ...]) -> Position:
        """The round was given up after this peer held its result."""
        return replace(self, accepted=accepted, succession=succession)

    def come_back(self, others: Mapping[PeerId, int], now_s: float) -> Position:
        """The state was taken over while `others` were in sight, at these distances from the last round: what this peer
        knew of the group is out of date.

        Until it takes part in a round it goes with those of the shortest distance: any number of newcomers together
        cannot tell whether the members are at the next round behind a cut. It also goes with those whom it saw in the
        last minute: else the smaller side of a split could forget that there is a larger one.
        """
        least = min(others.values(), default=0)
        nearest = tuple(sorted(peer for peer, distance in others.items() if distance == least))
        recent = {*self.everyone, *self.entered} if now_s - self.planned_s < RECENT_S else set[PeerId]()
        distance = min(least + 1, MOST_DISTANCE)
        return replace(self, view=(), origin=nearest or (self.me,), seen=tuple(sorted(recent)), distance=distance)

    def regrouped(self, epoch: int, members: Sequence[PeerId], *, is_one: bool) -> Position:
        """The organisers named the `members` that go on in this epoch: the view, if this peer is one of them with their
        state; else those to come back to. What was held for the lost majority counts no more.
        """
        others = replace(self, epoch=epoch, entered=())
        if not is_one:
            return replace(
                others, view=(), origin=tuple(members), seen=(), distance=1, planned_s=-math.inf, late_s=-math.inf
            )
        return replace(others, view=tuple(members), origin=(), distance=0, accepted=None, succession=(), has_vote=True)

    def with_view(self, view: Sequence[str]) -> Position:
        """A member of the last round, at the same step, told who else was in that."""
        return replace(self, view=self.view or tuple(map(PeerId, view)))

    def without(self, peer: PeerId) -> Position:
        """A peer said goodbye."""
        return replace(self, departed=self.departed | {peer}, departed_before=self.departed_before | {peer})

    def with_again(self, peer: PeerId) -> Position:
        """A peer is back."""
        return replace(self, departed=self.departed - {peer})

    def may_begin_with(self, leader: PeerId, alive: Collection[PeerId]) -> bool:
        """Whether this peer may join `leader` while these peers are in sight. Who has its state from others joins none
        but these while too few of them are there: a newcomer that knows only newcomers would go on with their number.
        """
        if leader in self.origin:
            return True
        present = [peer for peer in self.origin if peer not in self.departed]
        return has_quorum(alive, by_tie_breaker(present, self.organiser))

    # ---- promises

    def promising(self, leader: PeerId) -> Position:
        """This peer joins `leader`, which gets a higher number than the leader before."""
        if not self.has_vote or (leader == self.leader and not self.is_used):
            return self
        return replace(self, leader=leader, promised=self.promised + 1, joined=self.promised + 1, is_used=False)

    def promised_to(self, leader: PeerId) -> int:
        """What this peer promised to `leader`: 0 if it has no vote, or joined another one since."""
        return self.promised if self.has_vote and leader == self.leader and not self.is_used else 0

    def raised(self, leader: PeerId, ballot: int) -> Position:
        """This peer is asked to promise a leader, which it joined, a higher number."""
        if not self.promised_to(leader):
            return self
        return replace(self, promised=max(self.promised, min(ballot, self.joined + MOST_RAISED)))

    @property
    def highest_led(self) -> int:
        """The highest number that counts in a group which this peer leads. It stays the same however often the members
        promise anew, and those that joined with about the same number as this peer may all promise it.
        """
        return self.joined + MOST_RAISED // 2

    def entering(self, plan: Plan, now_s: float) -> Position:
        """This peer takes part in the round of a plan. Whether its members are the next view is open until the round is
        committed; those of a first group decide whether it ever gets to a result.

        Raises `ProtocolError` if others decide on it than the members of the last round, as far as this peer knows
        these, or decided on the result that it adopts; if this peer has a vote and promised a higher number, or if the
        number is so high that numbers would soon run out; or if the plan takes it for a holder of what it does not
        hold.
        """
        is_holder = plan.rank_of(self.me) in plan.holders
        if (flaw := self._flaw_of(plan, is_holder=is_holder)) is not None:
            raise ProtocolError(flaw, peer=plan.members[0].peer_id, phase="group")
        foreseen_s = UNFORESEEN_S if plan.predicted_s is None else LATE * min(plan.predicted_s, IDLE_S)
        held = (self.accepted, self.succession) if is_holder else (None, ())
        return replace(
            self,
            view=self.view or (() if plan.electorate else plan.ids),
            entered=plan.ids,
            planned_s=now_s,
            late_s=now_s + foreseen_s,
            clients=frozenset(member.peer_id for member in plan.members if not member.aggregates),
            has_vote=self.has_vote or not plan.electorate,  # the members of a first group decide, from now on
            leader=plan.members[0].peer_id,
            promised=max(self.promised, plan.ballot),
            is_used=True,
            accepted=held[0],  # else the round writes over what was held: a quorum promised that it does not count
            succession=held[1],
        )

    def _flaw_of(self, plan: Plan, *, is_holder: bool) -> str | None:
        view, members, held = self.view, plan.ids, self.accepted.round_id if self.accepted is not None else ""
        if view and not plan.electorate and self.has_vote:
            return "it begins anew although there was a last round"
        if view and (plan.electorate > len(view) or any(members[voter] not in view for voter in plan.voters)):
            return "it lets others decide than the last round's members"
        if view and plan.adopts and not self.has_decided(plan.succession):
            return "it adopts what no quorum of the last round can have made"
        if is_holder and held != plan.adopts:
            return "the plan counts on a result that this peer does not hold"
        if self.has_vote and plan.electorate and (members[0] != self.leader or plan.ballot < self.promised):
            return "the plan has a lower number than its leader was promised"
        if plan.ballot > self.promised + MOST_AHEAD:
            return "the plan has a number that no attempt gets to"
        return None

    # ---- who decides

    def electorate(self) -> tuple[PeerId, ...]:
        """The members of the last round that have not said goodbye, the tie-breaker first."""
        return by_tie_breaker([peer for peer in self.view if peer not in self.departed], self.organiser)

    def deciding(self, votes: Mapping[PeerId, Vote], voters: Collection[PeerId]) -> tuple[PeerId, ...]:
        """Those of the electorate that decide in a group with these `votes`, the tie-breaker first: all, or where the
        `voters` are no quorum of them, but all are in the group, and those that have a vote are voters, these alone.

        The processes of the others ended since the last round. So none of the members is past the step, and what the
        others may have decided is lost with them.
        """
        electorate = self.electorate()
        rest = tuple(peer for peer in electorate if peer not in votes or votes[peer].ballot)
        is_whole = bool(rest) and votes.keys() >= set(electorate) and set(rest).issubset(voters)
        return rest if is_whole and not has_quorum(voters, electorate) else electorate

    def has_decided(self, makers: Collection[PeerId]) -> bool:
        """Whether the `makers` of a result may have decided this step: a quorum of the last round is among them.
        Members that said goodbye in this step do not count, whether they are back or not, unless they are among the
        makers: the leader may have known less than this peer does.
        """
        gone = self.departed_before - set(makers)
        view = by_tie_breaker([peer for peer in self.view if peer not in gone], self.organiser)
        return has_quorum(set(makers), view)

    def newest_held(self, votes: Mapping[PeerId, Vote], voters: Collection[PeerId]) -> Accepted | None:
        """The latest result that a member with a vote held in an earlier attempt at the step (one with a number that
        this member promised to go beyond), and that may be committed by what the `voters` of this attempt say.
        """
        electorate, view = self.electorate(), by_tie_breaker(self.view, self.organiser)
        counted = [
            vote.accepted
            for peer, vote in votes.items()
            if vote.accepted is not None and peer in electorate and vote.accepted.ballot < vote.ballot
        ]
        for newest in sorted(counted, key=lambda accepted: accepted.order, reverse=True):
            if may_be_committed(view, {peer for peer in voters if not is_same(votes[peer].accepted, newest)}):
                return newest
        return None

    def with_voters(self, plan: Plan, votes: Mapping[PeerId, Vote], voters: Collection[PeerId]) -> Plan | None:
        """The plan of a group that this peer leads, with those who decide on it; None if they are no quorum. A first
        group has no electorate.
        """
        electorate = self.deciding(votes, voters)
        if not electorate:
            return msgspec.structs.replace(plan, ballot=max(1, plan.ballot))
        if not has_quorum(voters, electorate):
            return None
        places = {member.peer_id: index for index, member in enumerate(plan.members)}
        return msgspec.structs.replace(
            plan,
            voters=tuple(sorted(places[peer] for peer in electorate if peer in voters)),
            electorate=len(electorate),
            tie_breaker=places.get(electorate[0]),
        )

    def are_past(self, ahead: Collection[PeerId]) -> bool:
        """Whether most of the others whom this peer goes with are among those `ahead`."""
        if not ahead:
            return False
        known = [peer for peer in self.everyone if peer != self.me]
        return bool(known) and has_quorum(set(ahead), known)


def ballot_of(votes: Mapping[PeerId, Vote], most: int) -> int:
    """The number of an attempt: the highest that one of its members promised, but for those above `most`."""
    return max(vote.ballot for vote in votes.values() if vote.ballot <= most)


def adopting(plan: Plan, result: Accepted, votes: Mapping[PeerId, Vote], makers: tuple[str, ...]) -> Plan:
    """The plan, of which the members that hold a result give it to the others; `makers` are those that made it."""
    return msgspec.structs.replace(
        plan,
        adopts=result.round_id,
        holders=tuple(place for place, peer in enumerate(plan.ids) if is_same(votes[peer].accepted, result)),
        view=makers,
        orders=result.orders,
        rates=result.rates,
        predicted_s=None,
    )


def is_same(one: Accepted | None, other: Accepted) -> bool:
    """Whether two members hold the same result, in whichever attempts."""
    if one is None:
        return False
    return msgspec.structs.replace(one, ballot=other.ballot, leader=other.leader, term=other.term) == other
