"""From the last committed round to the next: who decides this step, and whether its result is there already.

The leader of an attempt asks three things before it sends its plan. Have enough members of the last round promised this
attempt (`quorum.py`)? Has one of them held a result in an earlier attempt? Then another member may have applied that,
and the plan adopts it instead of reducing anew. And whose result is it? Its members are the next step's electorate. A
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

import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from msgspec.structs import replace

from minga.averaging.clocking.registration import Registration
from minga.averaging.election import has_quorum
from minga.averaging.matchmaking.acceptor import Acceptor
from minga.averaging.matchmaking.leader import CLOSE_CHECK_S, GroupLeader
from minga.averaging.matchmaking.quorum import QuorumRule
from minga.averaging.matchmaking.view import MembershipView
from minga.averaging.messages import Accepted, AskView, Plan, View
from minga.core.errors import ProtocolError, RejectedError, RemoteError
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.network.rpc.framing import MessageStream
from minga.network.rpc.node import Node

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
