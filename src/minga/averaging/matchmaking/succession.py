"""From the last committed round to the next: who decides this step, and whether its result is there already.

The leader of an attempt asks three things before it sends its plan. Have enough members of the last round promised this
attempt? Has one of them held a result in an earlier attempt? Then another member may have applied that, and the plan
adopts it instead of reducing anew. And whose result is it? Its members are the next step's electorate. A
leader that fetched its state did not see the last round; one that did not hold the result does not know its members:
both ask a member that does. `averaging/allreduce/commit.py` has the whole protocol.

A member may say that it holds a result that nobody made, so its word alone counts for nothing. A committed result was
held by a quorum, which shares a member with each other quorum. If the members that promised this attempt and do not
hold the result are a quorum, it was not committed and never will be: the plan reduces anew. For that no leader has to
find out who lies, and no member is left out of anything, because a true holder must not be.

Where too few members are here to tell, the result may be committed. Then it is adopted, or the step waits for a holder
that tells whose it is, however long that takes: a timeout proves no lie. So lies cost time only where the liars and the
members that are away could be a quorum together. There, by staying away, the liars could stop the step as well (unless
many members said goodbye in that very step). A result is adopted only if a quorum may have made it, as far as the
leader and each member know. But where the liars name members that are away, and serve a made-up vector, nothing tells
it from a true one; runs that have to bear that need secure steps (`minga/security`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from msgspec.structs import replace

from minga.averaging.clocking.sample_quota import Registration
from minga.averaging.election import by_tie_breaker, has_quorum, is_majority, may_be_committed
from minga.averaging.group import GroupSettings, SwarmView
from minga.averaging.matchmaking.leader import CLOSE_CHECK_S, GroupLeader, OutOfSyncError
from minga.averaging.matchmaking.view import MembershipView
from minga.averaging.messages import Accepted, AskView, Plan, View
from minga.core.errors import MinorityError, ProtocolError, RejectedError, RemoteError
from minga.core.events.averaging import GroupMinority
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.network.gossip.changes import Change, Presence
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream

# ---- What this peer promised and held in the attempts at one step, so that it never lends its vote to two results.
#
# Theory of operation. A step may take several attempts: a leader is lost, a round is given up. Attempts have numbers.
# To join a leader is to promise it: from now on this peer holds no result of an attempt with a lower number, nor one
# of the same number under another leader. So the first leader of a step is promised 1, and each leader joined after it
# one more than the last. A leader whose members promised different numbers asks all of them for the highest
# (`Prepare`). What this peer held when a round was given up it tells each leader that it joins: another member may
# have applied it. `averaging/allreduce/commit.py` has the whole protocol, and why it is safe.


MOST_RAISED = 1000
"""By how much a leader may raise a promise in all: a step has few attempts, and numbers must not run out."""
MOST_AHEAD = 1 << 20
"""By how much the number of a plan may exceed a promise: no honest leaders can get so far apart."""


@loop_bound
class Acceptor:
    """One peer's memory of the attempts at its present step. It has a vote once it took part in a committed round."""

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self.accepted: Accepted | None = None
        """The latest result that this peer held in an attempt that it gave up."""
        self.succession: tuple[PeerId, ...] = ()
        """The members of the round that made it, the leader first."""
        self.has_vote = False
        """Whether this process took part in a committed round before, so that it forgot no promise."""
        self._step = -1
        self._promised = self._joined = 0
        """The highest number promised at this step, and the one promised when the present leader was joined."""
        self._leader: PeerId | None = None
        self._is_used = False

    def begin_step(self, step: int) -> None:
        """An attempt at `step` begins. A peer that went back to an earlier step has forgotten what it promised there:
        it has no vote until its next committed round.
        """
        if step < self._step:
            self.has_vote = False
        if step != self._step:
            self.accepted, self.succession, self._promised, self._leader = None, (), 0, None
            self._joined = 0
        self._step = step

    def promise(self, leader: PeerId) -> int:
        """The number that this peer promises by joining `leader` now; 0 if it has no vote."""
        if not self.has_vote:
            return 0
        if leader != self._leader or self._is_used:
            self._promised, self._leader, self._is_used = self._promised + 1, leader, False
            self._joined = self._promised
        return self._promised

    @property
    def highest_led(self) -> int:
        """The highest number that counts in a group which this peer leads. It stays the same however often the members
        promise anew, and those that joined with about the same number as this peer may all promise it.
        """
        return self._joined + MOST_RAISED // 2

    def raise_to(self, leader: PeerId, ballot: int) -> int:
        """Promise `leader`, which was joined, a higher number; returns what is promised to it now."""
        if self.has_vote and leader == self._leader and not self._is_used:
            self._promised = max(self._promised, min(ballot, self._joined + MOST_RAISED))
            return self._promised
        return 0

    def enter(self, plan: Plan) -> None:
        """This peer takes part in the round of a plan.

        Raises `ProtocolError` if it has a vote and promised a higher number, if the number is so high that numbers
        would soon run out, or if the plan takes it for a holder of what it does not hold.
        """
        leader, me = plan.members[0].peer_id, plan.rank_of(self._me)
        is_holder, held = me in plan.holders, self.accepted.round_id if self.accepted is not None else ""
        if is_holder and held != plan.adopts:
            raise ProtocolError("the plan counts on a result that this peer does not hold", peer=leader, phase="group")
        if self.has_vote and plan.electorate and (leader != self._leader or plan.ballot < self._promised):
            raise ProtocolError("the plan has a lower number than its leader was promised", peer=leader, phase="group")
        if plan.ballot > self._promised + MOST_AHEAD:
            raise ProtocolError("the plan has a number that no attempt gets to", peer=leader, phase="group")
        if not is_holder:  # the round writes over what was held before; a quorum promised that this does not count
            self.accepted, self.succession = None, ()
        self._promised, self._leader, self._is_used = max(self._promised, plan.ballot), leader, True
        self.has_vote = self.has_vote or not plan.electorate  # the members of a first group decide, from now on

    def hold(self, accepted: Accepted, succession: tuple[PeerId, ...]) -> None:
        """The round was given up after this peer held its result."""
        self.accepted, self.succession = accepted, succession

    def regroup(self) -> None:
        """The organisers named this peer among those that go on: what was held for the lost majority counts no more."""
        self.accepted, self.succession, self.has_vote = None, (), True

    def commit(self) -> None:
        """This peer took part in a committed round."""
        self.has_vote = True


# ---- Whether a group may take a step, so that no two groups ever take the same one.


UNANIMOUS_S = 10.0
"""Seconds for which a group of peers without a common past waits for everybody in sight, before most of them do."""

OVERTAKEN_S = 1.0
"""Seconds for which a member of the last round has to be past a step that finds no quorum, before the step is over."""


@loop_bound
class QuorumRule:
    """The rules for one step after the other.

    The members of the last round decide: most of them have to be in the group with their votes, those not counted who
    said goodbye. Where all of them are in the group, and most have no vote since they were started anew, the others
    decide. A first group, which succeeds none, waits for everybody that is in sight at its step, `UNANIMOUS_S` long,
    and then needs most of them; peers that fetched the state count the members from which they have it, too.
    """

    def __init__(self, node: Node, swarm_view: SwarmView, settings: GroupSettings) -> None:
        self._node, self._swarm_view = node, swarm_view
        self._wait_in_minority, self._organiser = settings.wait_in_minority, settings.organiser
        self._departed: set[PeerId] = set()
        self._departed_before: set[PeerId] = set()
        """Members that are gone since before this step or said goodbye in it, even if they are back."""
        self._step = -1
        self._in_minority = False
        self._apart_since_s: float | None = None
        self._overtaken_since_s: float | None = None
        swarm_view.observe(self._note_departures)

    def begin_step(self, step: int, view: Collection[PeerId]) -> None:
        """Forget for how long the group of the last step was in doubt, and who left before the members of `view`."""
        self._departed.intersection_update(view)
        if step != self._step:
            self._departed_before = set(self._departed)
        self._step = step
        self._in_minority, self._apart_since_s, self._overtaken_since_s = False, None, None

    def electorate(self, view: Sequence[PeerId], without: Collection[PeerId] = ()) -> tuple[PeerId, ...]:
        """The members of the last round that have not said goodbye, the tie-breaker first; `without` some of them."""
        gone = {*self._departed, *without}
        return by_tie_breaker([peer for peer in view if peer not in gone], self._organiser)

    def forgetful(
        self, view: Sequence[PeerId], voters: Collection[PeerId], voteless: Collection[PeerId], seen: Collection[PeerId]
    ) -> set[PeerId]:
        """The members of the last round whose processes ended since, and without whom the `voters` decide: those that
        are `voteless`, if the voters are no quorum, all members are among the peers `seen` in the group, and all that
        have a vote are voters.

        So none of the members is past the step, and what the processes that ended may have decided is lost with them.
        """
        electorate = set(self.electorate(view))
        rest = electorate.difference(voteless)
        is_whole = electorate.issubset(seen) and bool(rest) and rest.issubset(voters)
        return electorate - rest if is_whole and not has_quorum(voters, self.electorate(view)) else set()

    def may_be_committed(self, view: Sequence[PeerId], lacking: Collection[PeerId]) -> bool:
        """Whether a result of the step after the round of `view` may be committed, although these never held it."""
        return may_be_committed(by_tie_breaker(view, self._organiser), lacking)

    def has_decided(self, view: Sequence[PeerId], makers: Collection[PeerId]) -> bool:
        """Whether the `makers` of a result may have decided the step after the round of `view`: a quorum of that is
        among them. Members that said goodbye in this step do not count, whether they are back or not, unless they are
        among the makers: the leader may have known less than this peer does.
        """
        gone = self._departed_before - set(makers)
        return has_quorum(makers, by_tie_breaker([peer for peer in view if peer not in gone], self._organiser))

    def may_close(
        self,
        step: int,
        view: Sequence[PeerId],
        voters: Collection[PeerId],
        seen: Collection[PeerId],
        voteless: Collection[PeerId] = (),
    ) -> bool:
        """Whether a group with these `voters` may take `step`, `view` being the members of the last round.

        `seen` are all of the group, and `voteless` those of it who have no vote. Raises `OutOfSyncError` if the
        step is over already, and `MinorityError` if the view's majority is out of sight and the run spec says to stop
        then.
        """
        if self._swarm_view.is_behind(step):  # the others took it meanwhile, so none of them is at it any more
            return False
        electorate = self.electorate(view, self.forgetful(view, voters, voteless, seen))
        if has_quorum(voters, electorate):
            return True
        self._look_whether_over(step, electorate)
        if not has_quorum({*seen, *self._swarm_view.alive()}.difference(voteless), electorate):
            self._report_minority(step, len(seen), len(view))
        return False

    def may_found(self, step: int, origin: Sequence[PeerId], group: Collection[PeerId]) -> bool:
        """Whether `group`, none of whom knows of a last round, may be the first one; `origin` are those from whom this
        peer has its state, if it fetched that. Raises `MinorityError` as `may_close` does.
        """
        if origin:
            return self.may_close(step, origin, group, group)
        now = asyncio.get_running_loop().time()
        rivals = sorted({self._node.peer_id, *self._swarm_view.at(step)})
        if not set(group).issuperset(rivals):
            self._apart_since_s = self._apart_since_s or now
            if now - self._apart_since_s < UNANIMOUS_S:
                return False
        return not self._swarm_view.is_behind(step) and is_majority(group, rivals)

    def _look_whether_over(self, step: int, electorate: Collection[PeerId]) -> None:
        """One member of the last round that is past the step is enough: it applied a committed result. Too few others
        may be left to find that out by a new attempt. They get it with its state.
        """
        now = asyncio.get_running_loop().time()
        if set(electorate).isdisjoint(self._swarm_view.ahead(step)):
            self._overtaken_since_s = None
            return
        self._overtaken_since_s = self._overtaken_since_s or now
        if now - self._overtaken_since_s > OVERTAKEN_S:
            raise OutOfSyncError(
                "a member of the last round took this step already", code=RefusalCode.BEHIND, round=step
            )

    def _note_departures(self, peer: PeerId, change: Change) -> None:
        if change is Presence.LEFT:
            self._departed.add(peer)
            self._departed_before.add(peer)
        elif change is Presence.JOINED:
            self._departed.discard(peer)

    def _report_minority(self, step: int, group_size: int, view_size: int) -> None:
        if not self._in_minority:
            self._in_minority = True
            self._node.events.emit(GroupMinority(step=step, view=view_size))
        if not self._wait_in_minority:
            raise MinorityError(
                f"only {group_size} of the {view_size} members of the last round can be seen from here, or too many "
                "were started again; the rest may be training on without us. Check this machine's network and join "
                "again."
            )


# ---- In whose name the groups of this peer go on, and which result their plans adopt.


VIEW = "group.view"
Obtain = Callable[[Sequence[str], PeerId, int], Awaitable[None]]
"""Gets the organisers' orders with these ids, for the round of a step, from a peer, unless they are known."""


@loop_bound
class Succession:
    """Decides for one peer, step by step, in whose name its groups go on."""

    def __init__(
        self, node: Node, membership: MembershipView, quorum: QuorumRule, acceptor: Acceptor, obtain: Obtain
    ) -> None:
        self._node, self._membership, self._quorum, self._acceptor = node, membership, quorum, acceptor
        self._obtain = obtain
        self._step = -1
        self._viewless = set[PeerId]()  # members with a vote that could not tell who took part in the last round
        node.serve(VIEW, self._serve_view)

    def begin_step(self, step: int) -> None:
        """An attempt at `step` begins."""
        self._step = step
        self._quorum.begin_step(step, self._membership.everyone)
        self._acceptor.begin_step(step)

    # ---- the leader

    def may_close(self, voters: Collection[PeerId], group: Mapping[PeerId, Registration]) -> bool:
        """Whether a group may take the step; see `QuorumRule`."""
        if view := self._membership.view:
            return self._quorum.may_close(self._step, view, voters, group, _voteless(group))
        if set(voters) - self._viewless - {self._node.peer_id}:
            return False  # they know who decides, and are being asked
        return self._quorum.may_found(self._step, self._membership.everyone, group)

    async def learn_view(self, group: GroupLeader) -> None:
        """Where this leader fetched its state, and so missed the last round: ask the members that took part in it."""
        self._viewless = set[PeerId]()
        while not self._membership.view:
            for peer in sorted(group.voters() - self._viewless - {self._node.peer_id}):
                try:
                    self._membership.learn((await self._ask(peer)).members)
                    break
                except RemoteError:
                    self._viewless.add(peer)
            await group.changed.wait(CLOSE_CHECK_S)

    def is_in_doubt(self, registrations: Mapping[PeerId, Registration], voters: Collection[PeerId]) -> bool:
        """Whether the step may have a committed result already; see `newest_held`."""
        return self.newest_held(registrations, voters) is not None

    def newest_held(self, registrations: Mapping[PeerId, Registration], voters: Collection[PeerId]) -> Accepted | None:
        """The latest result that a member with a vote held in an earlier attempt at the step (one with a number that
        this member promised to go beyond), and that may be committed by what the `voters` of this attempt say.
        """
        view, electorate = self._membership.view, self._quorum.electorate(self._membership.view)
        held = {peer: registration.join.accepted for peer, registration in registrations.items()}
        counted = [
            accepted
            for peer, accepted in held.items()
            if accepted is not None and peer in electorate and accepted.ballot < registrations[peer].ballot
        ]
        for newest in sorted(counted, key=lambda accepted: accepted.order, reverse=True):
            lacking = {peer for peer in voters if not _is_same(held.get(peer), newest)}
            if self._quorum.may_be_committed(view, lacking):
                return newest
        return None

    async def decide(
        self, plan: Plan, registrations: Mapping[PeerId, Registration], voters: Collection[PeerId]
    ) -> Plan:
        """The plan with its voters, the members that promised its number; it adopts the latest held result.

        Raises `RejectedError` if it cannot be found out whose result that is.
        """
        newest, view = self.newest_held(registrations, voters), self._membership.view
        forgetful = self._quorum.forgetful(view, voters, _voteless(registrations), registrations)
        electorate = self._quorum.electorate(view, forgetful)
        if electorate and not has_quorum(voters, electorate):
            raise RejectedError("a member came back or left while the plan was made", code=RefusalCode.STAND_BY)
        plan = _with_electorate(plan, electorate, voters)
        if newest is None:
            return plan
        held = [registrations[member.peer_id].join.accepted for member in plan.members]
        holders = [index for index, accepted in enumerate(held) if _is_same(accepted, newest)]
        holder, members = await self._makers_of(newest, [plan.members[holder].peer_id for holder in holders])
        await self._obtain(newest.orders, holder, self._step)
        return replace(
            plan,
            adopts=newest.round_id,
            holders=tuple(holders),
            view=members,
            orders=newest.orders,
            rates=newest.rates,
            predicted_s=None,
        )

    async def _makers_of(self, result: Accepted, holders: Sequence[PeerId]) -> tuple[PeerId, tuple[str, ...]]:
        """A holder of a result that names members of its round with which it may be committed, and these."""
        for holder in holders:
            with contextlib.suppress(RemoteError):
                is_own = holder == self._node.peer_id
                members = self._acceptor.succession if is_own else (await self._ask(holder, result.round_id)).members
                if self._quorum.has_decided(self._membership.view, set(map(PeerId, members))):
                    return holder, members
        raise RejectedError("no holder tells whose result it has", code=RefusalCode.STAND_BY)

    async def _ask(self, peer: PeerId, round_id: str = "") -> View:
        return await self._node.call(peer, VIEW, AskView(self._step, round_id), View)

    # ---- the member

    def enter(self, plan: Plan) -> None:
        """This peer takes part in the round of a plan.

        Raises `ProtocolError` if others decide on it than the members of the last round, as far as this peer knows
        these, or decided on the result that it adopts, or if it does not fit to what this peer promised and holds.
        """
        leader, members = plan.members[0].peer_id, plan.ids
        view = self._membership.view
        if view and not plan.electorate and self._acceptor.has_vote:
            raise ProtocolError("it begins anew although there was a last round", peer=leader, phase="group")
        if view and (plan.electorate > len(view) or any(members[voter] not in view for voter in plan.voters)):
            raise ProtocolError("it lets others decide than the last round's members", peer=leader, phase="group")
        if view and plan.adopts and not self._quorum.has_decided(view, set(plan.succession)):
            raise ProtocolError("it adopts what no quorum of the last round can have made", peer=leader, phase="group")
        self._acceptor.enter(plan)

    async def _serve_view(self, _peer: PeerId, stream: MessageStream) -> None:
        request, acceptor = await stream.receive(AskView), self._acceptor
        members = self._membership.view
        if request.round_id:
            is_held = acceptor.accepted is not None and acceptor.accepted.round_id == request.round_id
            members = acceptor.succession if is_held else ()
        if request.step != self._step or not members:
            raise RejectedError("this peer does not know who took part in that round", code=RefusalCode.STAND_BY)
        await stream.send(View(tuple(members)))


def _with_electorate(plan: Plan, electorate: Sequence[PeerId], voters: Collection[PeerId]) -> Plan:
    """The plan, decided by the `electorate`, whose first breaks ties; that of a first group is empty."""
    if not electorate:
        return replace(plan, ballot=max(1, plan.ballot))
    places = {member.peer_id: index for index, member in enumerate(plan.members)}
    return replace(
        plan,
        voters=tuple(sorted(places[peer] for peer in electorate if peer in voters)),
        electorate=len(electorate),
        tie_breaker=places.get(electorate[0]),
    )


def _voteless(group: Mapping[PeerId, Registration]) -> set[PeerId]:
    return {peer for peer, registration in group.items() if not registration.ballot}


def _is_same(one: Accepted | None, other: Accepted) -> bool:
    """Whether two members hold the same result, in whichever attempts."""
    return one is not None and replace(one, ballot=other.ballot, leader=other.leader, term=other.term) == other
