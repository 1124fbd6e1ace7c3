"""Group formation: from "step 7 begins" to a signed plan that every member has.

Theory of operation. The members of the last round, their *view*, are known to all of them alike, so `ranking` gives
all of them the same order of possible leaders for the next step without a word being said. Each peer joins the first
of them that it can hear, at the very start of the step, and stays on that stream until the plan comes over it:

    member                                    leader
      ── Join{step, report, address} ─────────▶   takes a registration in the `GroupLeader`
      ── Update{report} after each micro-batch ▶
      ◀───────────────────── Limit{samples} ─     where to stop, if that is not what the last plan said
      ── Update{report: parked} ──────────────▶
      ◀─────────────────── SignedPlan ──────      the step is full

A peer that was asked but does not lead answers `Redirect`. A leader that falls silent is suspected and the next in
rank is asked; the join names the suspects, so that the next one knows why it is asked. Newcomers, who have no view,
first ask the peers of that step whom they follow. Two leaders of one step (two groups started at once, or a network
was split and healed) find each other through the board: the one with fewer members redirects them to the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import msgspec

from minga.averaging.clocking.batch_size import BatchSize
from minga.averaging.clocking.sample_quota import Registration
from minga.averaging.clocking.standby import Standby
from minga.averaging.group import Contributor, GroupSettings, SwarmView
from minga.averaging.matchmaking.attempt import HERE, JOIN, PROBE, QUORUM_LOOK_S, VIEW, GroupAttempt, OutOfSyncError
from minga.averaging.matchmaking.follower import ask_around, follow
from minga.averaging.matchmaking.leader import LOOK_S, GroupLeader, Here
from minga.averaging.matchmaking.votes import Position, adopting
from minga.averaging.messages import MAX_PLAN_NOTE_BYTES, Accepted, AskView, Join, Plan, Redirect, View
from minga.averaging.planning.plan_maker import Divide, PlanMaker
from minga.averaging.planning.signed_plan import sign_plan
from minga.averaging.solver.planner import divide
from minga.core.aio import Signal, watching
from minga.core.errors import ProtocolError, RejectedError, RemoteError
from minga.core.events.averaging import GroupLeaderLost
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.identity.keys.keys import Identity
from minga.network.gossip.board import Change, Presence
from minga.network.interface import Address, PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MAX_MESSAGE_BYTES, MessageStream

AHEAD_PATIENCE_S = 5.0
"""Seconds that a join for a later step waits for this peer to get there before it is refused."""
STAND_BY_S = 0.25
PREPARE_PERIOD_S = 1.0
ENVELOPE_BYTES = 256
"""What a signed plan takes besides the plan itself and its note, at most."""
_NO_LEADER_FOR_US = (RefusalCode.AHEAD, RefusalCode.LAYOUT, RefusalCode.FULL, RefusalCode.UNFAIR)
"""Refusals after which this peer looks for another leader."""


async def serve_here(_: PeerId, stream: MessageStream) -> None:
    """Answer a leader that calls those who have not joined it yet."""
    await stream.receive(Here)
    await stream.send(Here())


@loop_bound
class GroupFormation:
    """Forms the group of one step after the other for one peer: it leads or follows."""

    def __init__(
        self,
        node: Node,
        identity: Identity,
        settings: GroupSettings,
        swarm_view: SwarmView,
        contributor: Contributor,
        divide: Divide = divide,
    ) -> None:
        self.batch = BatchSize(settings)
        """The target batch size, as far as this peer knows it."""
        self._node, self._identity, self._settings = node, identity, settings
        self._swarm_view, self._contributor = swarm_view, contributor
        self._standby = Standby(node, contributor)
        self._plan_maker = PlanMaker(node, settings, swarm_view, divide)
        nowhere = Position(node.peer_id, settings.organiser)
        self._attempt = GroupAttempt(node, settings, swarm_view, contributor, self.batch, self._standby, nowhere)
        self._led_group: GroupLeader | None = None
        self._following: PeerId | None = None
        self._changed = Signal()
        swarm_view.observe(self._note_departures)
        node.serve(VIEW, self._serve_view)
        node.serve(JOIN, self._serve_join)
        node.serve(PROBE, self._serve_probe)
        node.serve(HERE, serve_here)

    # ---- what happens to this peer between two groups

    @property
    def position(self) -> Position:
        """Where this peer stands: the last round that it took part in, and what it promised and held since."""
        return self._attempt.position

    @position.setter
    def position(self, position: Position) -> None:
        self._attempt.position = position

    def come_back(self, others: Mapping[PeerId, int]) -> None:
        """The state was taken over while `others` were in sight, at these distances from the last round."""
        self.position = self.position.come_back(others, asyncio.get_running_loop().time())
        self.batch.forget()

    def regroup(self, epoch: int, members: Sequence[PeerId], *, is_one: bool) -> None:
        """From now on go only with peers of this epoch: the `members` that the organisers named decide the next step.
        `is_one`: this peer is one of them, and has the state with which they go on.
        """
        self.position = self.position.regrouped(epoch, members, is_one=is_one)
        self._changed.fire()

    def take_up(self, epoch: int, history: str, previous: str = "") -> None:
        """This peer has a state of this epoch and of these rounds now, to which the result with the fingerprint
        `previous` led, unless it came in another way.
        """
        self.position = replace(self.position, epoch=epoch, history=history, previous=previous)

    def commit(self, plan: Plan) -> None:
        """The round of this plan is committed."""
        self.position = self.position.after(plan)

    def give_up(self, plan: Plan, term: int, fingerprint: str) -> None:
        """The round of this plan was given up after this peer held its result, in `term`, which may be committed."""
        leader = plan.members[0].peer_id
        held = Accepted(plan.ballot, leader, term, plan.result_id, fingerprint, plan.orders, plan.rates)
        self.position = self.position.holding(held, plan.succession)

    def _note_departures(self, peer: PeerId, change: Change) -> None:
        if change is Presence.LEFT:
            self.position = self.position.without(peer)
        elif change is Presence.JOINED:
            self.position = self.position.with_again(peer)

    # ---- one attempt

    async def form(self, step: int, avoid: Collection[PeerId] = ()) -> Plan:
        """Find the group of `step` and return its plan; `avoid` went silent in the last round and is not asked first.

        Raises `OutOfSyncError` if the swarm is ahead, and `MinorityError` if the view's majority is out of sight and
        the run spec says to stop then.
        """
        before = self.position.step
        attempt = self._attempt = self._attempt.next(step, avoid)
        self._standby.watch(step, before)
        self._changed.fire()
        try:
            async with asyncio.timeout(None) as finding:
                with watching(QUORUM_LOOK_S, lambda: attempt.look_for_quorum(finding)):
                    return await self._find(attempt)
        except TimeoutError:
            if attempt.minority is None:
                raise
            raise attempt.minority from None
        finally:
            self._led_group, self._following = None, None
            self._standby.end()
            self._changed.fire()

    async def _find(self, attempt: GroupAttempt) -> Plan:
        invited: Address | None = None
        if not attempt.position.view:
            invited = await ask_around(attempt)
        while True:
            if attempt.is_behind():
                raise OutOfSyncError("the swarm went on without us", code=RefusalCode.BEHIND, round=attempt.step)
            leader, invited = invited, None
            if leader is not None and not attempt.may_join(leader.peer_id):
                leader = None
            try:
                leader = leader or attempt.choose_leader()
                if leader is not None:
                    attempt.count_try(leader.peer_id)
                outcome = await (self._lead(attempt) if leader is None else self._follow(attempt, leader))
            except OutOfSyncError:
                raise
            except RejectedError as error:  # it cannot take us right now: ask again a little later
                if error.code in _NO_LEADER_FOR_US and error.peer:
                    attempt.suspects.add(PeerId(error.peer))
                await self._changed.wait(STAND_BY_S)
                continue
            except RemoteError as error:
                peer = PeerId(error.peer) if error.peer else leader.peer_id if leader else attempt.me
                attempt.suspects.add(peer)
                self._node.events.emit(GroupLeaderLost(peer=peer, step=attempt.step, why=error.message))
                continue
            if isinstance(outcome, Plan):
                self._plan_maker.remember(outcome)
                self._standby.ask(attempt.step, rest=outcome.rank_of(attempt.me) in outcome.resting)
                return outcome
            invited = outcome

    async def _follow(self, attempt: GroupAttempt, leader: Address) -> Plan | Address:
        self._following = leader.peer_id
        try:
            outcome = await follow(attempt, leader)
        finally:
            self._following = None
        if not isinstance(outcome, Address):
            plan = outcome.plan
            await self._settings.orders.obtain(plan.orders, leader.peer_id, attempt.step)
            self.batch.check(plan)
            self._plan_maker.check(plan, outcome.said)
            attempt.enter(plan)
            self._settings.notes.take(plan, outcome.note)
            return plan
        if outcome.peer_id in (*attempt.suspects.now(), attempt.me):
            why = f"redirected to {outcome.peer_id[:10]}, which cannot lead"
            raise RejectedError(why, code=RefusalCode.STAND_BY, peer=leader.peer_id)
        return outcome

    async def _lead(self, attempt: GroupAttempt) -> Plan | Address:
        loop = asyncio.get_running_loop()
        own = Registration(attempt.join(attempt.me), self._contributor.report(), loop.time())
        group = GroupLeader(attempt, own)
        self._led_group, attempt.merge_into = group, None
        self._changed.fire()
        aside = [loop.create_task(self._look_around(group))]
        if not attempt.position.view:
            aside.append(loop.create_task(group.learn_view()))
        try:
            leader = await group.run()
            if leader is not None:
                return leader
            plan, registrations = await self._plan(group)
            attempt.enter(plan)
            signed = sign_plan(plan, self._identity)
            note = self._note_with(plan, registrations, MAX_MESSAGE_BYTES - ENVELOPE_BYTES - len(signed.plan))
            await group.send_plan(msgspec.structs.replace(signed, note=note), plan.ids)
            return plan
        except BaseException:
            await group.dismiss()
            raise
        finally:
            for task in aside:
                task.cancel()
            self._led_group = None
            self._changed.fire()

    async def _plan(self, group: GroupLeader) -> tuple[Plan, Mapping[PeerId, Registration]]:
        """The plan of a group that is closed, and its members as they were then: some may have left since.

        Raises `RejectedError` if they are no quorum any more, or if it cannot be found out whose result they held.
        """
        attempt, step, registrations, votes = group.attempt, group.attempt.step, group.everyone(), group.votes()
        voters, ballot = group.voters(), group.ballot
        attempt.give_up_waiting(registrations)
        made = await self._plan_maker.plan(step, registrations)
        every, due = self._settings.averages_every(step), self._settings.orders.due(step)
        made = msgspec.structs.replace(made, ballot=ballot, orders=due, averages_every=every)
        newest, plan = attempt.position.newest_held(votes, voters), attempt.position.with_voters(made, votes, voters)
        if plan is None:
            raise RejectedError("a member came back or left while the plan was made", code=RefusalCode.STAND_BY)
        if newest is not None:
            plan = adopting(plan, newest, votes, await group.makers_of(newest, plan, votes))
        overlapped = self._contributor.facts.max_in_flight > 0
        batch = self.batch.after(step, registrations.values(), plan.orders, overlapped=overlapped)
        limits = group.limits_of_the_next(plan.ids, registrations, batch)
        return msgspec.structs.replace(plan, limits=limits, next_batch=batch), registrations

    def _note_with(self, plan: Plan, registrations: Mapping[PeerId, Registration], room_bytes: int) -> bytes:
        """What goes to all members with the plan, if the message has room for it."""
        notes = self._settings.notes
        note = notes.with_plan(plan, {peer: registrations[peer].join.note for peer in plan.ids})
        note = note if len(note) <= min(room_bytes, MAX_PLAN_NOTE_BYTES) else b""
        notes.take(plan, note)
        return note

    async def _look_around(self, group: GroupLeader) -> None:
        """What a leader does from time to time while the step is under way; nothing of it in a short step."""
        await asyncio.sleep(LOOK_S)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(group.suspect_the_silent())
            tasks.create_task(self._prepare(group))
            tasks.create_task(group.probe_other_leaders())

    async def _prepare(self, group: GroupLeader) -> None:
        """Have a division at hand for the peers that are registered."""
        step = group.attempt.step
        while True:
            await asyncio.sleep(PREPARE_PERIOD_S)
            overlapped = self._contributor.facts.max_in_flight > 0
            await self._plan_maker.prepare(step, group.attempt.target_batch, group.everyone(), overlapped=overlapped)
            if not any(
                registration.goes_on or registration.report.samples for registration in group.registrations.values()
            ):
                self._standby.break_off(step)  # nobody else computes: those for whom it rested are gone

    # ---- being asked

    async def _serve_join(self, peer: PeerId, stream: MessageStream) -> None:
        join = await stream.receive(Join)
        await self._admit(peer, join)
        group = self._led_group
        if group is not None and not group.closed:
            await group.attend(peer, join, stream)
            return
        leader = self._following
        address = self._swarm_view.address(leader) if leader is not None else None
        if leader is None or address is None or leader in join.suspects or leader == peer:
            raise RejectedError("not leading and not following at the moment", code=RefusalCode.STAND_BY)
        await stream.send(Redirect(address))
        await stream.finish()
        await stream.drain()  # it may have sent updates meanwhile

    async def _serve_probe(self, peer: PeerId, stream: MessageStream) -> None:
        join = await stream.receive(Join)
        await self._admit(peer, join)
        group = self._led_group
        if group is None or group.closed:
            leader = self._swarm_view.address(self._following) if self._following is not None else None
            if leader is None:
                raise RejectedError("not leading and not following at the moment", code=RefusalCode.STAND_BY)
            await stream.send(Redirect(leader))
        elif not group.attempt.may_lead_us(peer) or (len(group.registrations), self._node.peer_id) > (join.seats, peer):
            await stream.send(Redirect(self._node.address))
        else:
            group.give_way_to(join.address)
            await stream.send(Redirect(join.address))

    async def _serve_view(self, _peer: PeerId, stream: MessageStream) -> None:
        request, position = await stream.receive(AskView), self.position
        members = position.view
        if request.round_id:
            is_held = position.accepted is not None and position.accepted.round_id == request.round_id
            members = position.succession if is_held else ()
        if request.step != position.step or not members:
            raise RejectedError("this peer does not know who took part in that round", code=RefusalCode.STAND_BY)
        await stream.send(View(members))

    async def _admit(self, peer: PeerId, join: Join) -> None:
        """Refuse a peer that has nothing to do with this one's groups, and wait until this one is at its step."""
        self._check_join(peer, join)
        await self._reach(join.step)
        if join.history != self.position.history:
            raise RejectedError("other rounds led to its state than to this peer's", code=RefusalCode.DIVERGED)

    def _check_join(self, peer: PeerId, join: Join) -> None:
        if join.layout != self._settings.vectors(join.step).layout:
            why = "its parameters have other shapes or another codec than this run's, or its rounds other vectors"
            raise RejectedError(why, code=RefusalCode.LAYOUT)
        if join.epoch != self.position.epoch:
            raise RejectedError(
                "the organisers regrouped the run, and one side does not know it yet", code=RefusalCode.STAND_BY
            )
        if join.address.peer_id != peer:
            raise ProtocolError("it joins with the address of another peer", peer=peer)

    async def _reach(self, step: int) -> None:
        """Wait until this peer is at `step`, for a while."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + AHEAD_PATIENCE_S
        while self.position.step < step:
            if (left := deadline - loop.time()) <= 0:
                raise RejectedError(f"still at step {self.position.step}", code=RefusalCode.AHEAD)
            await self._changed.wait(left)
        if step < self.position.step:
            raise RejectedError(f"step {step} is over, this is step {self.position.step}", code=RefusalCode.BEHIND)
